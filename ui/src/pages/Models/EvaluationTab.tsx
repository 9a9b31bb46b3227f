import { Box, Button, chakra, Flex, HStack, List, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { LuDownload } from "react-icons/lu";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { Choice } from "src/components/Choice";
import { Empty } from "src/components/Empty";
import { QueryView } from "src/components/QueryView";
import { Segments } from "src/components/Segments";
import { StateBadge } from "src/components/StateBadge";
import { formatCount, formatTime, shortRun } from "src/format";
import { useExtensions } from "src/hooks/useExtensions";
import { useQuery } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
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
import { cardAddress, type ModelDetail, useCandidateEvaluation, useEvaluation } from "src/pages/Models/queries";
import { ResidualBars } from "src/pages/Models/ResidualBars";
import { SliceTable } from "src/pages/Models/SliceTable";
import { type Evaluated, nameOf, VersionBadge } from "src/pages/Models/versions";
import { metricLabel } from "src/pages/Models/words";
import { type ArtifactRef, airflowTaskPath, formatArtifact, parseArtifact } from "src/routes";

type Evaluation = Schemas["Evaluation"];
type Report = Schemas["EvaluationReport"];
type OfLabel = Pick<Report, "problem" | "label" | "rule">;

const CHOICES = 12;

/** The evaluation of a version when it was made, beside the champion at the time, overall and by slice. */
export function EvaluationTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [query, change] = useQuery();
  const hasCards = useExtensions()("model_cards");
  const named = detail.deployed.find((version) => String(version) === query.get("version"));
  const version = named ?? detail.challenger?.version ?? detail.champion?.version ?? detail.deployed[0];
  const newest = version === undefined ? detail.refused[0]?.judged : undefined;
  const candidate = parseArtifact(query.get("candidate") ?? "") ?? newest ?? null;
  if (version === undefined && candidate === null) {
    return <Empty title="No version has been evaluated yet" />;
  }
  const choose = (chosen: { version?: string; candidate?: string }) =>
    change({ version: null, candidate: null, by: null, slice: null, ...chosen });
  return (
    <Stack gap={4}>
      <HStack gap={3} wrap="wrap">
        {version !== undefined && (
          <>
            <Text fontSize="sm" color="fg.muted">
              Version
            </Text>
            <Segments
              size="xs"
              label="Version"
              value={candidate ? "" : String(version)}
              onChange={(value) => choose({ version: value })}
              items={detail.deployed.slice(0, CHOICES).map((each) => [String(each), `v${each}${roleOf(detail, each)}`])}
            />
          </>
        )}
        <RefusedChoice detail={detail} candidate={candidate} onChoose={(value) => choose({ candidate: value })} />
        {hasCards && version !== undefined && candidate === null && (
          <Button asChild size="xs" variant="outline" flexShrink={0}>
            <chakra.a href={cardAddress(dagId, detail.name, version)} download>
              <LuDownload />
              Download model card
            </chakra.a>
          </Button>
        )}
      </HStack>
      {candidate ? (
        <OfCandidate key={formatArtifact(candidate)} judged={candidate} />
      ) : (
        version !== undefined && <OfVersion key={version} dagId={dagId} model={detail.name} version={version} />
      )}
    </Stack>
  );
}

/** The refused candidates to choose from; the one that the address names is among them in any case. */
function RefusedChoice({
  detail: { refused },
  candidate,
  onChoose,
}: {
  detail: ModelDetail;
  candidate: ArtifactRef | null;
  onChoose: (value: string) => void;
}) {
  const zone = useTimezone();
  const values = refused.map(({ at, judged }) => ({ value: formatArtifact(judged), label: formatTime(at, zone) }));
  const value = candidate ? formatArtifact(candidate) : "";
  if (values.every((each) => each.value !== value)) {
    values.unshift({ value, label: candidate ? shortRun(candidate.run_id) : "–" });
  }
  return (
    (refused.length > 0 || candidate !== null) && (
      <Choice
        label="Refused candidate"
        value={value}
        values={values}
        onChange={(chosen) => chosen && onChoose(chosen)}
      />
    )
  );
}

function roleOf({ champion, challenger }: ModelDetail, version: number): string {
  return version === champion?.version ? " champion" : version === challenger?.version ? " challenger" : "";
}

function OfVersion({ dagId, model, version }: { dagId: string; model: string; version: number }) {
  const evaluation = useEvaluation(dagId, model, version);
  return <QueryView query={evaluation}>{(found) => <Found evaluation={found} version={version} />}</QueryView>;
}

function OfCandidate({ judged }: { judged: ArtifactRef }) {
  const evaluation = useCandidateEvaluation(judged);
  return <QueryView query={evaluation}>{(found) => <Found evaluation={found} version={null} />}</QueryView>;
}

function Found({ evaluation, version }: { evaluation: Evaluation; version: Evaluated }) {
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
      <Flex gap={6} direction={{ base: "column", xl: "row" }} align="flex-start">
        <Box flex="2" minW={0} width="full">
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

/** What the problem has beside figures: calibration, residuals of numbers, classes and what they are taken for. */
function Pictures({
  evaluation: { problem, label },
  champion: champion_version,
  split,
  version,
}: {
  evaluation: OfLabel;
  champion: number | null;
  split: Split;
  version: Evaluated;
}) {
  const { candidate, champion } = split;
  const other: [Evaluated, typeof champion][] = champion_version === null ? [] : [[champion_version, champion]];
  return (
    <SimpleGrid columns={{ base: 1, xl: 2 }} gap={6}>
      {calibrationOf(candidate).length > 0 && (
        <Panel title="Calibration">
          <CalibrationChart
            candidate={candidate}
            champion={champion}
            versions={[version, champion_version]}
            problem={problem}
            label={label}
          />
        </Panel>
      )}
      {residualsOf(candidate).length > 0 && (
        <Panel title="Residuals">
          <ResidualBars versions={[[version, candidate], ...other]} label={label} />
        </Panel>
      )}
      {classesOf(candidate).length > 0 && (
        <>
          <Panel title={`Confusion matrix of ${nameOf(version)}`}>
            <ConfusionMatrix figures={candidate} />
          </Panel>
          <Panel title="By class">
            <ClassTable candidate={candidate} champion={champion} />
          </Panel>
        </>
      )}
    </SimpleGrid>
  );
}

function Panel({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Box minW={0}>
      <Text fontWeight="semibold" fontSize="sm" mb={2}>
        {title}
      </Text>
      {children}
    </Box>
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
            {reason}
          </List.Item>
        ))}
      </List.Root>
    </Box>
  );
}
