import { Badge, Box, HStack, Progress, Text } from "@chakra-ui/react";
import {
  AppLink,
  type Column,
  CopyButton,
  column,
  ERROR,
  numberColumn,
  StateBadge,
  Tooltip,
  TwoLines,
} from "src/components";
import { formatBytes, formatDuration, formatNumber } from "src/format";
import { airflowTaskPath, instanceLabel } from "src/routes";
import { CachedBadge } from "src/tabs/run/CachedBadge";
import { type ArtifactEntry, headlineOf, isConserved, pageOf, type StageRow } from "src/tabs/run/stages";

const GONE: Record<string, string> = { deleted: "deleted", unreachable: "cannot be read" };

export const STAGE_COLUMNS: Column<StageRow>[] = [
  column("stage", "Stage", {
    fixed: true,
    width: 165,
    help: "A stage is a task of the pipeline with an artifact, such as statistics or a training; sorted by position",
    value: (row) => row.position,
    render: ({ stage, task }) => (
      <TwoLines
        first={
          <AppLink to={airflowTaskPath(task)} fontWeight="medium" truncate>
            {stage.task_id}
            {instanceLabel(stage, stage.map_label)}
          </AppLink>
        }
        second={<Text truncate>{stage.operator}</Text>}
      />
    ),
  }),
  column("state", "State", { width: 140, value: (row) => row.stage.state, render: (row) => <StateCell row={row} /> }),
  column("artifact", "Artifact", {
    width: 260,
    value: (row) => row.artifact?.kind,
    render: (row) => (row.artifact ? <ArtifactCell row={row} artifact={row.artifact} /> : <None row={row} />),
  }),
  numberColumn("rows", "Rows in → out", ({ artifact }) => artifact?.total_rows?.rows_out, {
    width: 160,
    help: "Rows read and written; the difference is rejected, with reasons",
    render: ({ artifact }) => artifact && <RowsCell artifact={artifact} />,
  }),
  numberColumn("size", "Size", ({ artifact }) => artifact?.size_bytes, { width: 90, format: formatBytes }),
  numberColumn("duration", "Took", ({ stage }) => stage.duration_s, { width: 85, format: formatDuration }),
  column("fingerprint", "Fingerprint", {
    width: 130,
    help: "The same contents have the same fingerprint, wherever they are stored",
    value: (row) => row.artifact?.fingerprint,
    render: ({ artifact }) =>
      artifact && (
        <HStack gap={1}>
          <Text fontFamily="mono" fontSize="xs" title={artifact.fingerprint}>
            {artifact.fingerprint.slice(0, 10)}
          </Text>
          <CopyButton text={artifact.fingerprint} label="Copy the fingerprint" />
        </HStack>
      ),
  }),
];

function StateCell({ row: { stage } }: { row: StageRow }) {
  const {
    state,
    try_number,
    max_tries,
    progress: [progress],
    error,
  } = stage;
  const tries = try_number > 1 ? `try ${try_number} of ${Math.max(max_tries + 1, try_number)}` : null;
  if (progress) {
    const share = progress.progress === null ? null : Math.round(progress.progress * 100);
    return (
      <TwoLines
        first={
          <>
            <StateBadge state={state} />
            <Progress.Root value={share} size="xs" width="40px" aria-label={`${stage.task_id}: ${share ?? "some"} %`}>
              <Progress.Track>
                <Progress.Range />
              </Progress.Track>
            </Progress.Root>
          </>
        }
        second={<Text truncate title={progress.text}>{`${share === null ? "" : `${share}% · `}${progress.text}`}</Text>}
      />
    );
  }
  const more = [error, tries].filter(Boolean).join(" · ");
  return (
    <TwoLines
      first={<StateBadge state={state} />}
      second={
        more && (
          <Tooltip content={<Text whiteSpace="pre-wrap">{more}</Text>}>
            <Text truncate color={error ? ERROR : undefined}>
              {more}
            </Text>
          </Tooltip>
        )
      }
    />
  );
}

function ArtifactCell({ row, artifact }: { row: StageRow; artifact: ArtifactEntry }) {
  const gone = GONE[artifact.state];
  return (
    <TwoLines
      first={
        <>
          {gone ? (
            <Text color="fg.muted" textDecoration="line-through">
              {artifact.kind.replaceAll("_", " ")}
            </Text>
          ) : (
            <AppLink to={pageOf({ stage: row.stage, artifact })} truncate>
              {artifact.kind.replaceAll("_", " ")}
            </AppLink>
          )}
          {artifact.cached && <CachedBadge artifact={artifact} />}
          {gone && (
            <Badge
              size="sm"
              colorPalette={artifact.state === "deleted" ? "gray" : "failed"}
              title={artifact.detail ?? ""}
            >
              {gone}
            </Badge>
          )}
        </>
      }
      second={
        <Text truncate title={headlineOf(artifact)} fontVariantNumeric="tabular-nums">
          {headlineOf(artifact)}
        </Text>
      }
    />
  );
}

function None({ row: { stage } }: { row: StageRow }) {
  if (stage.state === "skipped") {
    const why = stage.skipped ?? "An upstream task was skipped, or no branch led to this task.";
    return (
      <Tooltip content={<Text whiteSpace="pre-wrap">{why}</Text>}>
        <Text color="fg.muted" lineClamp={2} whiteSpace="normal" lineHeight="1.35" tabIndex={0}>
          {why}
        </Text>
      </Tooltip>
    );
  }
  const makesOne = stage.stage !== "retraining" && stage.stage !== "serving";
  const waits = stage.state !== "success" && stage.state !== "failed";
  return <Text color="fg.muted">{makesOne && waits ? "not yet" : "–"}</Text>;
}

function RowsCell({ artifact }: { artifact: ArtifactEntry }) {
  if (artifact.total_rows === null) {
    return <>–</>;
  }
  const { rows_in: rowsIn, rows_out: rowsOut } = artifact.total_rows;
  const rejected = Object.values(artifact.total_rows.rejected).reduce((sum, count) => sum + count, 0);
  const conserved = isConserved(artifact);
  const reasons = Object.entries(artifact.rows).flatMap(([name, { rejected: of }]) =>
    Object.entries(of).map(([reason, count]) => `${name}: ${formatNumber(count)} ${reason}`),
  );
  return (
    <Box lineHeight="1.35" title={reasons.join("\n")}>
      {rowsIn === rowsOut ? formatNumber(rowsOut) : `${formatNumber(rowsIn)} → ${formatNumber(rowsOut)}`}
      {(rejected > 0 || !conserved) && (
        <Text fontSize="xs" color={conserved ? "fg.muted" : ERROR}>
          {conserved ? `${formatNumber(rejected)} rejected` : "rows are missing"}
        </Text>
      )}
    </Box>
  );
}
