import { Box, Flex, HStack, List, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, Empty, Part, QueryView, Segments, StateBadge } from "src/components";
import { formatCount } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { CalibrationChart } from "src/pages/Models/CalibrationChart";
import { ClassTable, ConfusionMatrix } from "src/pages/Models/ClassTables";
import { FiguresTable } from "src/pages/Models/FiguresTable";
import {
  calibrationOf,
  classesOf,
  directionsOf,
  inUnits,
  namesOf,
  residualsOf,
  type Split,
  splitsOf,
} from "src/pages/Models/figures";
import { useCandidateEvaluation } from "src/pages/Models/queries";
import { ResidualBars } from "src/pages/Models/ResidualBars";
import { SliceTable } from "src/pages/Models/SliceTable";
import { type Evaluated, nameOf, VersionBadge } from "src/pages/Models/versions";
import { metricLabel, metricsInWords } from "src/pages/Models/words";
import { type ArtifactRef, airflowTaskPath } from "src/routes";

type Evaluation = Schemas["Evaluation"];
type OfLabel = Pick<Schemas["EvaluationReport"], "problem" | "label" | "rule">;

/** The evaluation of a candidate, by the task that made it. */
export function CandidateEvaluation({ judged }: { judged: ArtifactRef }) {
  const evaluation = useCandidateEvaluation(judged);
  return <QueryView query={evaluation}>{(found) => <EvaluationView evaluation={found} version={null} />}</QueryView>;
}

/** An evaluation of a version, or of a candidate: the verdict, figures overall and by slice, beside the champion at the time. */
export function EvaluationView({ evaluation, version }: { evaluation: Evaluation; version: Evaluated }) {
  const [query, change] = useQuery();
  const { report } = evaluation;
  const label = query.get("label") ?? "";
  const further = report.more_labels?.[label];
  const shown = further ? { ...further, label } : report;
  const labels = [report.label ?? "", ...Object.keys(report.more_labels ?? {})];
  const metric = String(shown.rule.metric);
  const splits = splitsOf(shown);
  const split = splits.find(({ name }) => name === query.get("split")) ?? splits[0];
  if (!split) {
    return <Empty title="This evaluation has no split" />;
  }
  const champion = split.champion === null ? null : (report.champion?.version ?? null);
  const features = Object.keys(split.slices ?? {});
  const by = features.find((each) => each === query.get("by")) ?? features[0];
  return (
    <Stack gap={4}>
      <Blessing evaluation={evaluation} version={version} />
      <HStack gap={3} wrap="wrap">
        {labels.length > 1 && (
          <Segments
            size="xs"
            label="Label"
            value={shown.label ?? ""}
            items={labels.map((each) => [each, each || "label"])}
            onChange={(value) => change({ label: value === report.label ? null : value, slice: null })}
          />
        )}
        <Segments
          size="xs"
          label="Split"
          value={split.name}
          items={splits.map(({ name, rows }) => [name, `${name} · ${formatCount(rows)} rows`])}
          onChange={(value) => change({ split: value })}
        />
      </HStack>
      <Flex gap={6} wrap="wrap" align="flex-start">
        <Box flex="2 1 480px" minW={0}>
          <Text fontWeight="semibold" fontSize="sm" mb={2}>
            All rows
          </Text>
          <FiguresTable
            split={split}
            version={version}
            champion={champion}
            metric={metric}
            higher={directionsOf(shown.rule)}
          />
          <Units evaluation={shown} split={split} />
        </Box>
        {by !== undefined && (
          <Box flex="3 1 560px" minW={0}>
            <HStack mb={2} gap={3}>
              <Text fontWeight="semibold" fontSize="sm">
                By slice
              </Text>
              <Segments
                size="xs"
                label="Sliced by"
                value={by}
                items={features.map((each) => [each, each])}
                onChange={(value) => change({ by: value, slice: null })}
              />
            </HStack>
            <SliceTable
              key={`${shown.label} ${split.name} ${by}`}
              feature={by}
              split={split}
              version={version}
              champion={champion}
              metric={metric}
            />
          </Box>
        )}
      </Flex>
      <Pictures evaluation={shown} champion={champion} split={split} version={version} />
    </Stack>
  );
}

function Units({ evaluation: { problem, label }, split }: { evaluation: OfLabel; split: Split }) {
  const names = inUnits(problem, namesOf(split.candidate));
  return (
    names.length > 0 && (
      <Text fontSize="xs" color="fg.muted" mt={1}>
        In the unit of {label ?? "the label"}: {names.map(metricLabel).join(", ")}
      </Text>
    )
  );
}

interface Props {
  evaluation: OfLabel;
  champion: number | null;
  split: Split;
  version: Evaluated;
}

/** What the problem has beside figures: calibration, residuals of numbers, classes and what they are taken for. */
function Pictures({ evaluation: { problem, label }, champion: champion_version, split, version }: Props) {
  const { candidate, champion } = split;
  const other: [Evaluated, typeof champion][] = champion_version === null ? [] : [[champion_version, champion]];
  return (
    <SimpleGrid columns={{ base: 1, xl: 2 }} gap={6}>
      {calibrationOf(candidate).length > 0 && (
        <Part title="Calibration">
          <CalibrationChart
            candidate={candidate}
            champion={champion}
            versions={[version, champion_version]}
            problem={problem}
            label={label}
          />
        </Part>
      )}
      {residualsOf(candidate).length > 0 && (
        <Part title="Residuals">
          <ResidualBars versions={[[version, candidate], ...other]} label={label} />
        </Part>
      )}
      {classesOf(candidate).length > 0 && (
        <>
          <Part title={`Confusion matrix of ${nameOf(version)}`}>
            <ConfusionMatrix figures={candidate} />
          </Part>
          <Part title="By class">
            <ClassTable candidate={candidate} champion={champion} />
          </Part>
        </>
      )}
    </SimpleGrid>
  );
}

function Blessing({ evaluation, version }: { evaluation: Evaluation; version: Evaluated }) {
  const { artifact, report } = evaluation;
  const { blessed, reasons, champion } = report;
  const isCompared = splitsOf(report).some((split) => split.champion !== null);
  return (
    <Box borderStartWidth={4} borderColor={blessed ? "success.solid" : "failed.solid"} ps={3}>
      <HStack gap={2} wrap="wrap" fontSize="sm">
        <StateBadge state={blessed ? "blessed" : "not blessed"} size="sm" />
        <VersionBadge version={version} />
        <Text>
          {champion?.version == null
            ? "there was no champion to compare it with"
            : isCompared
              ? `compared with version ${champion.version}, the champion at the time, on the same rows`
              : `not compared with version ${champion.version}, the champion at the time`}
          {" · "}
          <AppLink to={airflowTaskPath(artifact)} title={artifact.run_id}>
            {artifact.dag_id}.{artifact.task_id}
          </AppLink>
        </Text>
      </HStack>
      <List.Root ps={4} mt={1} fontSize="sm" color="fg.muted">
        {reasons?.map((reason) => (
          <List.Item key={reason} {...(reason.startsWith("warning: ") && { color: "fg", fontWeight: "semibold" })}>
            {metricsInWords(reason)}
          </List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
