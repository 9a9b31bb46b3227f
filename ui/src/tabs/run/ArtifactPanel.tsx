import { Box, CloseButton, Heading, HStack, Link, Stack, Text } from "@chakra-ui/react";
import { LuDownload } from "react-icons/lu";
import { api, apiAddress, type Schemas } from "src/api/client";
import { AppLink, ERROR, Part, QueryView, Time } from "src/components";
import { formatBytes, formatNumber, plural } from "src/format";
import { airflowRunPath, artifactPath, instanceOf, lineagePath, pathOf } from "src/routes";
import { CachedBadge } from "src/tabs/run/CachedBadge";
import { type ArtifactEntry, pageOf, type StageRow } from "src/tabs/run/stages";
import { RowsTable } from "src/tabs/task/parts";

const MOST_FILES = 200;

type Detail = Schemas["ArtifactDetail"];

interface Props {
  row: StageRow;
  artifact: ArtifactEntry;
  onClose: () => void;
}

/** All that there is to know of one of the run's artifacts: rows by table, files, figures, what it was made from. */
export function ArtifactPanel({ row, artifact, onClose }: Props) {
  const { dag_id, task_id, kind } = artifact;
  const detail = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}",
    { params: { path: pathOf(artifact) } },
    { enabled: artifact.state === "present" },
  );
  return (
    <Box as="section" aria-label={`The artifact of ${task_id}`} borderWidth={1} borderRadius="md" p={3} fontSize="sm">
      <HStack justify="space-between" mb={2}>
        <HStack gap={2}>
          <Heading size="sm" as="h2">
            {kind.replaceAll("_", " ")}
          </Heading>
          {artifact.cached && <CachedBadge artifact={artifact} />}
        </HStack>
        <CloseButton size="xs" aria-label="Close" onClick={onClose} />
      </HStack>
      <HStack gap={4} mb={3}>
        <AppLink to={pageOf({ stage: row.stage, artifact })}>Open</AppLink>
        <AppLink to={lineagePath(dag_id, { artifact })}>Lineage</AppLink>
        <Text color="fg.muted">
          <Time at={artifact.created_at} />
        </Text>
      </HStack>
      {artifact.state !== "present" && <Text color={ERROR}>{artifact.detail}</Text>}
      <Stack gap={4}>
        {Object.keys(artifact.rows).length > 0 && (
          <Part title="Rows">
            <RowsTable rows={artifact.rows} />
          </Part>
        )}
        <Figures metrics={artifact.metrics} />
        {artifact.state === "present" && (
          <QueryView query={detail}>
            {(found) => (
              <>
                <Inputs inputs={found.inputs} />
                <Files files={found.files} address={artifact} />
              </>
            )}
          </QueryView>
        )}
      </Stack>
    </Box>
  );
}

function Figures({ metrics }: { metrics: Detail["metrics"] }) {
  const figures = Object.entries(metrics);
  if (figures.length === 0) {
    return null;
  }
  return (
    <Part title="Figures">
      <Box display="grid" gridTemplateColumns="1fr auto" columnGap={4} rowGap={0.5} fontVariantNumeric="tabular-nums">
        {figures.map(([name, value]) => (
          <Box key={name} display="contents">
            <Text truncate title={name}>
              {name.replaceAll("_", " ")}
            </Text>
            <Text textAlign="end" title={String(value)}>
              {formatNumber(value)}
            </Text>
          </Box>
        ))}
      </Box>
    </Part>
  );
}

function Inputs({ inputs }: { inputs: Detail["inputs"] }) {
  const all = Object.entries(inputs).flatMap(([role, given]) => given.map((input) => ({ role, input })));
  if (all.length === 0) {
    return null;
  }
  return (
    <Part title="Made from">
      {all.map(({ role, input: { kind, state, address, fingerprint } }, index) => (
        <HStack key={`${role}/${fingerprint ?? index}`} gap={2}>
          {address ? (
            <>
              <AppLink to={artifactPath(address)}>{kind.replaceAll("_", " ")}</AppLink>
              <Text color="fg.muted" truncate>
                of{" "}
                <AppLink color="fg.muted" to={airflowRunPath(address.dag_id, address.run_id)}>
                  {address.task_id}
                </AppLink>
              </Text>
            </>
          ) : (
            <Text color="fg.muted">
              {kind.replaceAll("_", " ")} ({state})
            </Text>
          )}
        </HStack>
      ))}
    </Part>
  );
}

function Files({ files, address }: { files: Detail["files"]; address: ArtifactEntry }) {
  const { dag_id, run_id, task_id, kind } = address;
  const folder = ["dags", dag_id, "runs", run_id, "artifacts", task_id, instanceOf(address), kind, "files"];
  return (
    <Part title={plural(files.length, "file")}>
      <Box maxHeight="320px" overflowY="auto" tabIndex={0} role="group" aria-label="Files">
        {files.slice(0, MOST_FILES).map(({ path, size_bytes }) => (
          <HStack key={path} justify="space-between" gap={3} py={0.5}>
            <Link
              href={apiAddress(...folder, ...path.split("/"))}
              download
              color="fg.info"
              fontFamily="mono"
              fontSize="xs"
              wordBreak="break-all"
            >
              <LuDownload aria-hidden style={{ flexShrink: 0 }} />
              {path}
            </Link>
            <Text color="fg.muted" whiteSpace="nowrap" fontSize="xs" fontVariantNumeric="tabular-nums">
              {formatBytes(size_bytes)}
            </Text>
          </HStack>
        ))}
        {files.length > MOST_FILES && <Text color="fg.muted">and {formatNumber(files.length - MOST_FILES)} more</Text>}
      </Box>
    </Part>
  );
}
