import { Box, Flex, HStack, List, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { Empty } from "src/components/Empty";
import { QueryView } from "src/components/QueryView";
import { Segments } from "src/components/Segments";
import { StateBadge } from "src/components/StateBadge";
import { formatCount } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { FiguresTable } from "src/pages/Models/FiguresTable";
import { type ModelDetail, useEvaluation } from "src/pages/Models/queries";
import { SliceTable } from "src/pages/Models/SliceTable";
import { VersionBadge } from "src/pages/Models/versions";
import { airflowTaskPath } from "src/routes";

type Evaluation = Schemas["Evaluation"];

const CHOICES = 12;

/** What a version was worth when it was made, beside the champion of then, overall and by slice. */
export function EvaluationTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [query, change] = useQuery();
  const named = detail.deployed.find((version) => String(version) === query.get("version"));
  const version = named ?? detail.challenger?.version ?? detail.champion?.version ?? detail.deployed[0];
  if (version === undefined) {
    return <Empty title="No version has been evaluated yet" />;
  }
  return (
    <Stack gap={4}>
      <HStack gap={3} wrap="wrap">
        <Text fontSize="sm" color="fg.muted">
          Version
        </Text>
        <Segments
          size="xs"
          label="Version"
          value={String(version)}
          onChange={(value) => change({ version: value, by: null, slice: null })}
          items={detail.deployed.slice(0, CHOICES).map((each) => [String(each), `v${each}${roleOf(detail, each)}`])}
        />
      </HStack>
      <OfVersion key={version} dagId={dagId} model={detail.name} version={version} />
    </Stack>
  );
}

function roleOf({ champion, challenger }: ModelDetail, version: number): string {
  return version === champion?.version ? " champion" : version === challenger?.version ? " challenger" : "";
}

function OfVersion({ dagId, model, version }: { dagId: string; model: string; version: number }) {
  const evaluation = useEvaluation(dagId, model, version);
  return <QueryView query={evaluation}>{(found) => <Found evaluation={found} version={version} />}</QueryView>;
}

function Found({ evaluation, version }: { evaluation: Evaluation; version: number }) {
  const [query, change] = useQuery();
  const split = evaluation.splits.find(({ name }) => name === query.get("split")) ?? evaluation.splits[0];
  if (!split) {
    return <Empty title="This evaluation has no split" />;
  }
  const features = Object.keys(split.slices);
  const by = features.find((each) => each === query.get("by")) ?? features[0];
  return (
    <Stack gap={4}>
      <Blessing evaluation={evaluation} version={version} />
      <HStack gap={3}>
        <Segments
          size="xs"
          label="Split"
          value={split.name}
          items={evaluation.splits.map(({ name, rows }) => [name, `${name} · ${formatCount(rows)} rows`])}
          onChange={(value) => change({ split: value })}
        />
      </HStack>
      <Flex gap={6} direction={{ base: "column", xl: "row" }} align="flex-start">
        <Box flex="2" minW={0} width="full">
          <Text fontWeight="semibold" fontSize="sm" mb={2}>
            All rows
          </Text>
          <FiguresTable
            split={split}
            version={version}
            champion={evaluation.champion_version}
            metric={evaluation.metric}
          />
        </Box>
        {by !== undefined && (
          <Box flex="3" minW={0} width="full">
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
              key={`${split.name} ${by}`}
              feature={by}
              split={split}
              version={version}
              champion={evaluation.champion_version}
              metric={evaluation.metric}
            />
          </Box>
        )}
      </Flex>
    </Stack>
  );
}

function Blessing({ evaluation, version }: { evaluation: Evaluation; version: number }) {
  const { blessed, reasons, artifact, champion_version } = evaluation;
  return (
    <Box borderStartWidth={4} borderColor={blessed ? "success.solid" : "failed.solid"} ps={3}>
      <HStack gap={2} wrap="wrap" fontSize="sm">
        <StateBadge state={blessed ? "blessed" : "not blessed"} size="sm" />
        <VersionBadge version={version} />
        <Text>
          {champion_version === null
            ? "there was no champion to compare it with"
            : `compared with version ${champion_version}, the champion of then, on the same rows`}
          {" · "}
          <AppLink to={airflowTaskPath(artifact)} title={artifact.run_id}>
            {artifact.dag_id}.{artifact.task_id}
          </AppLink>
        </Text>
      </HStack>
      <List.Root ps={4} mt={1} fontSize="sm" color="fg.muted">
        {reasons.map((reason) => (
          <List.Item key={reason}>{reason}</List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
