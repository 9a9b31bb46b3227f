import { HStack, Stack, Text } from "@chakra-ui/react";
import type { Overview } from "src/api/pipelines";
import { useSkewReport } from "src/api/skew";
import { AppLink, Part, Sparkline, StateBadge, Time } from "src/components";
import { formatCount, plural } from "src/format";
import { changeInWords, VERDICTS } from "src/pages/Skew/words";
import { type ArtifactRef, skewPath } from "src/routes";

const MOST = 3;

/** Whether what the model is asked still looks like what it learnt: now, and at the checks before. */
export function DriftSection({ overview: { pipeline, models, skew: checks } }: { overview: Overview }) {
  const { dag_id: dagId, skew, monitors } = pipeline;
  if (skew === null) {
    const unwatched = monitors.length === 0 && !pipeline.stages.includes("skew");
    return (
      <Part boxed title="Drift">
        <Text fontSize="sm" color="fg.muted">
          {pipeline.health.some(({ about }) => about === "stage")
            ? "Not known, because an operator cannot be imported."
            : models.length === 0
              ? "This pipeline serves no model."
              : unwatched
                ? "This pipeline is not monitored. Add a DAG with a SkewOperator, which compares requests with the training data."
                : "No comparisons yet."}
        </Text>
      </Part>
    );
  }
  const { verdict, at, version } = skew;
  const serving = pipeline.model?.champion?.version;
  const drifted = verdict === "insufficient" ? [] : skew.drifted;
  const rows = checks.at(-1)?.rows;
  return (
    <Part boxed title="Drift" more={<AppLink to={skewPath(dagId)}>All features</AppLink>}>
      <Stack gap={2} fontSize="sm">
        <HStack gap={2} wrap="wrap">
          <AppLink to={skewPath(dagId, { artifact: skew })} aria-label={`Skew: ${verdict}`}>
            <StateBadge state={verdict} />
          </AppLink>
          <Text color="fg.muted">
            <Time at={at} />
            {rows != null && `, ${formatCount(rows)} rows`}
            {version !== null && ` against the training data of version ${version}`}
            {version !== null &&
              serving &&
              version !== serving &&
              `; version ${serving}, which serves, has no check yet`}
          </Text>
        </HStack>
        <Text>{VERDICTS[verdict]}</Text>
        {drifted.length > 0 && <Drifted dagId={dagId} names={drifted} report={skew} />}
        {checks.length > 1 && (
          <HStack gap={3} wrap="wrap">
            <Sparkline
              values={checks.map((check) => check.drifted)}
              width={280}
              height={56}
              palette={verdict === "stable" ? "success" : verdict === "pipeline_fault" ? "failed" : "warning"}
              label={`Features that drifted in the last ${plural(checks.length, "check")}`}
            />
            <Text color="fg.muted" fontSize="xs" maxW="40">
              Features that drifted, {plural(checks.length, "check")}
            </Text>
          </HStack>
        )}
      </Stack>
    </Part>
  );
}

/** The features that matter most, each with its change. */
function Drifted({ dagId, names, report }: { dagId: string; names: readonly string[]; report: ArtifactRef }) {
  const { data } = useSkewReport(report);
  const found = new Map(data?.features.map((each) => [each.name, each]));
  return (
    <Stack gap={1}>
      {names.slice(0, MOST).map((name) => {
        const feature = found.get(name);
        return (
          <Text key={name}>
            <AppLink to={skewPath(dagId, { feature: name })}>{name}</AppLink>
            {feature && `: ${changeInWords(feature, data?.problem ?? null)}`}
          </Text>
        );
      })}
      {names.length > MOST && <Text color="fg.muted">And {plural(names.length - MOST, "more feature")}.</Text>}
    </Stack>
  );
}
