/** Above the feature's line: what was decided about retraining, and which versions came and went. */

import { tooltipLines } from "src/components/chart/tooltip";
import { formatTime } from "src/format";
import { padded, type Shown } from "src/pages/Skew/chartShown";
import { type Check, placeOf, type TimeAxis, timesOf, type VersionEvent } from "src/pages/Skew/timeline";
import { decisionLabel, decisionLines, EVENTS, STOPS, toldInWords, toldOfStop } from "src/pages/Skew/words";

const OUTCOMES: Record<string, { symbol: string; token: string }> = {
  requested: { symbol: "triangle", token: "success.solid" },
  refused: { symbol: "emptyCircle", token: "fg.muted" },
  failed: { symbol: "rect", token: "failed.solid" },
  pending: { symbol: "emptyDiamond", token: "deferred.solid" },
};

const CROSS = "path://M2,0L5,3L8,0L10,2L7,5L10,8L8,10L5,7L2,10L0,8L3,5L0,2Z";

/** One mark a decision, where its comparison stands. A retraining that was refused although something drifted is filled. */
export function decisionSeries({ checks, theme, zone }: Shown, times: readonly number[]): object {
  const decided = checks.flatMap((check, index) => (check.decision ? [{ decision: check.decision, index }] : []));
  return {
    name: "decisions",
    type: "scatter",
    xAxisIndex: 0,
    yAxisIndex: 0,
    data: decided.map(({ decision, index }) => {
      const known = OUTCOMES[decision.outcome] ?? { symbol: "circle", token: "fg.muted" };
      const notable = decision.outcome === "refused" && decision.why !== "verdict";
      return {
        value: [times[index], "Retraining", index],
        symbol: toldOfStop(decision) ? "pin" : notable ? "circle" : known.symbol,
        symbolSize: toldOfStop(decision) ? 20 : decision.outcome === "requested" ? 11 : notable ? 8 : 6,
        itemStyle: {
          color: theme.color(STOPS.has(decision.why ?? "") ? "failed.solid" : notable ? "warning.solid" : known.token),
        },
      };
    }),
    tooltip: {
      formatter: ({ dataIndex }: { dataIndex: number }) => {
        const decision = decided[dataIndex]?.decision;
        const lines = decision ? decisionLines(decision) : [];
        return tooltipLines(theme, [
          { label: decision ? decisionLabel(decision) : "" },
          ...(decision?.reason && lines.length === 0 ? [{ label: decision.reason, muted: true }] : []),
          ...lines.map((label) => ({ label, muted: true })),
          ...(decision && toldInWords(decision) ? [{ label: toldInWords(decision), muted: true }] : []),
          ...(decision?.at ? [{ label: formatTime(decision.at, zone), muted: true }] : []),
        ]);
      },
    },
  };
}

/** A cross where a monitoring task failed. */
export function failureSeries({ failures, checks, axis, theme, zone }: Shown): object {
  return {
    name: "failures",
    type: "scatter",
    xAxisIndex: 0,
    yAxisIndex: 0,
    symbol: CROSS,
    symbolSize: 9,
    z: 6,
    itemStyle: { color: theme.color("failed.solid") },
    data: failures.map(({ at }) => [clamped(placeOf(at, checks, axis), checks, axis), "Retraining"]),
    tooltip: {
      formatter: ({ dataIndex }: { dataIndex: number }) => {
        const failure = failures[dataIndex];
        return tooltipLines(theme, [
          { label: `${failure?.task.task_id} failed` },
          ...(failure?.message ? [{ label: failure.message, muted: true }] : []),
          ...(failure ? [{ label: formatTime(failure.at, zone), muted: true }] : []),
        ]);
      },
    },
  };
}

export function versionSeries({ events, checks, axis, theme, zone }: Shown): object {
  // Several of one moment are one mark.
  const groups = new Map<number, VersionEvent[]>();
  for (const event of events) {
    const place = clamped(placeOf(event.at, checks, axis), checks, axis);
    groups.set(place, [...(groups.get(place) ?? []), event]);
  }
  const marks = [...groups];
  return {
    name: "versions",
    type: "scatter",
    xAxisIndex: 0,
    yAxisIndex: 0,
    symbol: "diamond",
    symbolSize: 11,
    z: 5,
    itemStyle: { color: theme.color("purple.solid") },
    data: marks.map(([place]) => [place, "Versions"]),
    tooltip: {
      formatter: ({ dataIndex }: { dataIndex: number }) =>
        tooltipLines(
          theme,
          (marks[dataIndex]?.[1] ?? []).flatMap((event) => [
            {
              label: `${event.model} v${event.version} ${EVENTS[event.event] ?? event.event}`,
              value: formatTime(event.at, zone),
            },
          ]),
        ),
    },
  };
}

function clamped(time: number, checks: readonly Check[], axis: TimeAxis): number {
  const times = timesOf(checks, axis);
  return Math.min(Math.max(time, padded(times, -1)), padded(times, 1));
}

/** Thin lines through the chart where a version took over. */
export function changeLines({ events, checks, axis, theme }: Shown): object {
  const taken = events.filter(({ event }) => event === "deployed" || event === "promoted" || event === "rolled_back");
  return {
    silent: true,
    symbol: "none",
    label: { show: false },
    lineStyle: { color: theme.color("purple.solid", 0.5), type: "solid", width: 1 },
    data: taken.map((event) => ({ xAxis: clamped(placeOf(event.at, checks, axis), checks, axis) })),
  };
}
