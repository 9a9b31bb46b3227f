import { HStack, Stack, Text } from "@chakra-ui/react";
import type { Overview } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { Sparkline } from "src/components/Sparkline";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { formatCount, formatList, formatNumber, plural } from "src/format";
import { Section } from "src/pages/Overview/Section";
import { worstRatio } from "src/pages/Pipelines/SkewCell";
import { VERDICTS } from "src/pages/Skew/words";
import { skewPath } from "src/routes";

/** Whether what the model is asked still looks like what it learnt: now, and at the checks before. */
export function DriftSection({ overview: { pipeline, models, skew: checks } }: { overview: Overview }) {
  const { dag_id: dagId, skew, monitors } = pipeline;
  if (skew === null) {
    const unwatched = monitors.length === 0 && !pipeline.stages.includes("skew");
    return (
      <Section title="Drift">
        <Text fontSize="sm" color="fg.muted">
          {models.length === 0
            ? "This pipeline serves no model."
            : unwatched
              ? "This pipeline is not monitored. Add a DAG with a SkewOperator, which compares requests with the training data."
              : "No comparisons yet."}
        </Text>
      </Section>
    );
  }
  const { verdict, drifted, lost, worst, at, report, version } = skew;
  const rows = checks.at(-1)?.rows;
  return (
    <Section title="Drift" more={<AppLink to={skewPath(dagId)}>All features</AppLink>}>
      <Stack gap={2} fontSize="sm">
        <HStack gap={2} wrap="wrap">
          <AppLink to={skewPath(dagId, { artifact: report })} aria-label={`Skew: ${verdict}`}>
            <StateBadge state={verdict} />
          </AppLink>
          <Text color="fg.muted">
            <Time at={at} />
            {rows != null && `, ${formatCount(rows)} rows`}
            {version !== null && ` against the training data of version ${version}`}
          </Text>
        </HStack>
        <Text>
          {VERDICTS[verdict]}
          {drifted.length > 0 && ` Drifted: ${formatList(drifted)}.`}
          {lost.length > 0 && `  Without values now: ${formatList(lost)}.`}
        </Text>
        {worst && (
          <Text color="fg.muted">
            Worst: <AppLink to={skewPath(dagId, { feature: worst.name })}>{worst.name}</AppLink>, score{" "}
            {formatNumber(worst.score, 3)}, threshold {formatNumber(worst.threshold, 3)}
          </Text>
        )}
        {checks.length > 1 && (
          <HStack gap={3} wrap="wrap">
            <Sparkline
              values={checks.map((check) => worstRatio(check.worst))}
              threshold={1}
              width={280}
              height={56}
              palette={verdict === "stable" ? "success" : verdict === "pipeline_fault" ? "failed" : "warning"}
              label={`The worst feature's score ÷ threshold in the last ${plural(checks.length, "check")}`}
            />
            <Text color="fg.muted" fontSize="xs" maxW="40">
              Worst score ÷ threshold, {plural(checks.length, "check")}; dashed: 1
            </Text>
          </HStack>
        )}
      </Stack>
    </Section>
  );
}
