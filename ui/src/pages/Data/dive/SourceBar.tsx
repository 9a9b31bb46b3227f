import { HStack, NativeSelect, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { formatCount, formatTime, shortRun } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import type { SourceRun } from "src/pages/Data/dive/sources";
import { type ArtifactRef, airflowTaskPath, formatArtifact, instanceLabel } from "src/routes";

/** What belongs to the rows that are looked at, and means nothing for others. */
const OF_ROWS = { view: null, select: null, row: null, find: null } as const;

/** The choice of the rows: of which run and artifact, and which split. */
export function SourceBar({
  artifact,
  runs,
  splits,
  split,
}: {
  artifact: ArtifactRef;
  runs: readonly SourceRun[];
  splits: Record<string, Schemas["SplitRows"]> | null;
  split: string;
}) {
  const [, change] = useQuery();
  const zone = useTimezone();
  const current = formatArtifact(artifact);
  const listed = runs.some(({ sources }) => sources.some(({ key }) => key === current));
  return (
    <HStack gap={3} mb={2} wrap="wrap">
      <Choice
        label="Rows of"
        value={current}
        onChange={(key) => change({ ...OF_ROWS, artifact: key, split: null }, { push: true })}
      >
        {!listed && <option value={current}>{`${artifact.task_id} · ${artifact.kind} · ${artifact.run_id}`}</option>}
        {runs.map(({ run, sources }) => (
          <optgroup
            key={run.run_id}
            label={`${formatTime(run.started_at ?? run.run_after, zone)} · ${run.run_type} · ${run.state}`}
          >
            {sources.map(({ ref, key, rows }) => (
              <option key={key} value={key}>
                {`${ref.task_id}${instanceLabel(ref)} · ${ref.kind}`}
                {rows === null ? "" : ` · ${formatCount(rows)} rows`}
              </option>
            ))}
          </optgroup>
        ))}
      </Choice>
      {splits && Object.keys(splits).length > 0 && (
        <Choice label="Split" value={split} onChange={(name) => change({ ...OF_ROWS, split: name }, { push: true })}>
          {Object.entries(splits).map(([name, { rows }]) => (
            <option key={name} value={name}>{`${name} · ${formatCount(rows)} rows`}</option>
          ))}
        </Choice>
      )}
      <Text fontSize="sm" color="fg.muted" truncate maxW="xl">
        made by{" "}
        <AppLink to={airflowTaskPath(artifact)} display="inline" title={artifact.run_id}>
          {artifact.task_id} of {shortRun(artifact.run_id)}
        </AppLink>
      </Text>
    </HStack>
  );
}

function Choice({
  label,
  value,
  onChange,
  children,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  children: ReactNode;
}) {
  return (
    <HStack gap={1.5}>
      <Text fontSize="sm" color="fg.muted" whiteSpace="nowrap">
        {label}
      </Text>
      <NativeSelect.Root size="sm" width="auto" maxW="md">
        <NativeSelect.Field aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          {children}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
    </HStack>
  );
}
