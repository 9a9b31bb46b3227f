import { chakra } from "@chakra-ui/react";
import { formatTime } from "src/format";
import { useTimezone } from "src/host";
import { heatToken } from "src/pages/Skew/heat";
import { type Check, type FeatureRow, timesOf } from "src/pages/Skew/timeline";
import { formatRatio } from "src/pages/Skew/words";

/** A cell a comparison, coloured by score and threshold; a click opens it. What was called drifted has a dot. */
export function HeatStrip({
  row,
  checks,
  chosen,
  width,
  height = 22,
  onChoose,
}: {
  row: FeatureRow;
  checks: readonly Check[];
  /** Index of the comparison that is shown. */
  chosen: number;
  width: number;
  height?: number;
  onChoose: (index: number) => void;
}) {
  const zone = useTimezone();
  const step = width / Math.max(checks.length, 1);
  const times = timesOf(checks, "data");
  const said = `${row.name}: beyond its threshold in ${row.driftedCount} of ${checks.length} comparisons, now ${formatRatio(row.now)} the threshold`;
  return (
    <chakra.svg width={`${width}px`} height={`${height}px`} role="img" aria-label={said} display="block">
      {checks.map((check, index) => {
        const ratio = row.ratios[index] ?? null;
        const token = heatToken(ratio);
        return (
          <chakra.g
            key={`${check.run_id}/${check.map_index}`}
            cursor="pointer"
            onClick={(event) => {
              event.stopPropagation();
              onChoose(index);
            }}
          >
            <title>
              {`${formatTime(times[index] ?? 0, zone)}: ${ratio === null ? "not compared" : `${formatRatio(ratio)} the threshold`}${row.drifted[index] ? ", drifted" : ""}`}
            </title>
            <chakra.rect
              x={index * step + (step > 4 ? 0.5 : 0)}
              y={1.5}
              width={Math.max(step - (step > 4 ? 1 : 0), 0.5)}
              height={height - 3}
              rx={step > 6 ? 2 : 0}
              fill={token ?? "transparent"}
              opacity={check.verdict === "insufficient" ? 0.4 : 1}
              stroke={index === chosen ? "fg" : token === null ? "border" : undefined}
              strokeWidth={index === chosen ? 1.5 : 1}
            />
            {row.drifted[index] && step > 6 && (
              <chakra.circle cx={(index + 0.5) * step} cy={height / 2} r={1.75} fill="bg" pointerEvents="none" />
            )}
          </chakra.g>
        );
      })}
    </chakra.svg>
  );
}
