import { Text } from "@chakra-ui/react";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { Sparkline } from "src/components/Sparkline";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { TwoLines } from "src/components/TwoLines";
import { CAUSE_LABELS } from "src/pages/Skew/words";
import { skewPath } from "src/routes";

const PALETTES: Record<string, string> = { drift: "warning", pipeline_fault: "failed" };

/** The monitoring's last word, the feature that matters most, and how many drifted at the checks before. */
export function SkewCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { dag_id, skew, monitors, model } = pipeline;
  if (skew === null) {
    const why = model === null ? "–" : monitors.length > 0 ? "not checked yet" : "not monitored";
    return <Text color="fg.muted">{why}</Text>;
  }
  const counts = activity?.skew.map(({ drifted }) => drifted) ?? [];
  const [feature] = skew.verdict === "insufficient" ? [] : skew.drifted;
  const cause = CAUSE_LABELS[skew.causes[feature ?? ""] ?? ""];
  return (
    <TwoLines
      first={
        <>
          <AppLink to={skewPath(dag_id, { artifact: skew })} aria-label={`Skew: ${skew.verdict}`}>
            <StateBadge state={skew.verdict} />
          </AppLink>
          <Text truncate>
            <Time at={skew.at} />
          </Text>
        </>
      }
      second={
        <>
          {counts.length > 1 && (
            <Sparkline
              values={counts}
              width={64}
              height={18}
              palette={PALETTES[skew.verdict] ?? "success"}
              label={`Features that drifted in the last ${counts.length} checks`}
            />
          )}
          {feature !== undefined && (
            <Text truncate title={skew.drifted.join(", ")}>
              <AppLink to={skewPath(dag_id, { feature })} color="fg.muted">
                {feature}
              </AppLink>
              {cause && `: ${cause}`}
              {skew.drifted.length > 1 && `, and ${skew.drifted.length - 1} more`}
            </Text>
          )}
        </>
      }
    />
  );
}
