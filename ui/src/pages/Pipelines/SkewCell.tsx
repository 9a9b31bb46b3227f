import { Text } from "@chakra-ui/react";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { Sparkline } from "src/components/Sparkline";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { TwoLines } from "src/components/TwoLines";
import { formatNumber } from "src/format";
import { ratioOf } from "src/pages/Skew/timeline";
import { skewPath } from "src/routes";

type Check = Activity["skew"][number];

const PALETTES: Record<string, string> = { drift: "warning", pipeline_fault: "failed" };

/** The worst feature's score by its threshold: above 1 is too much. */
export const worstRatio = (worst: Check["worst"] | undefined): number | null => ratioOf(worst?.score, worst?.threshold);

/** The monitoring's last word, the worst feature, and how it was at the checks before. */
export function SkewCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { dag_id, skew, monitors, model } = pipeline;
  if (skew === null) {
    const why = model === null ? "–" : monitors.length > 0 ? "not checked yet" : "not monitored";
    return <Text color="fg.muted">{why}</Text>;
  }
  const ratios = activity?.skew.map((check) => worstRatio(check.worst)) ?? [];
  const feature = skew.worst?.name;
  const sign = (worstRatio(skew.worst) ?? 0) > 1 ? ">" : "≤";
  const numbers = `${formatNumber(skew.worst?.score, 3)} ${sign} ${formatNumber(skew.worst?.threshold, 3)}`;
  return (
    <TwoLines
      first={
        <>
          <AppLink to={skewPath(dag_id, { artifact: skew.report })} aria-label={`Skew: ${skew.verdict}`}>
            <StateBadge state={skew.verdict} />
          </AppLink>
          <Text truncate>
            <Time at={skew.at} />
          </Text>
        </>
      }
      second={
        <>
          {ratios.length > 1 && (
            <Sparkline
              values={ratios}
              threshold={1}
              width={64}
              height={18}
              palette={PALETTES[skew.verdict] ?? "success"}
              label={`Worst score ÷ threshold in the last ${ratios.length} checks`}
            />
          )}
          {feature !== undefined && (
            <Text
              truncate
              title={`The worst feature, ${feature}: its score and its threshold, ${numbers}`}
              fontVariantNumeric="tabular-nums"
            >
              <AppLink to={skewPath(dag_id, { feature })} color="fg.muted">
                {feature}
              </AppLink>{" "}
              {numbers}
            </Text>
          )}
        </>
      }
    />
  );
}
