import { Box, Button, Grid, HStack, Image, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { LuDownload, LuFile, LuFolder } from "react-icons/lu";
import { api, apiAddress } from "src/api/client";
import { Empty } from "src/components/Empty";
import { QueryView } from "src/components/QueryView";
import { formatBytes } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;
const BINARY = /\.(pb|keras|h5|npz?|gz|zip|tar|bin|pkl|parquet|tfrecord|svg|html?|data-[\d-]+of-[\d-]+|index)$/i;
const PREVIEW_BYTES = 256 * 1024;

/** The files of a run, its code and libraries: a tree, and what lies in the chosen one, as text or a picture. */
export function RunFiles({ dagId, runId }: { dagId: string; runId: string }) {
  const query = api.useQuery("get", "/api/dags/{dag_id}/training-runs/{training_id}/files", {
    params: { path: { dag_id: dagId, training_id: runId } },
  });
  const [path, setPath] = useQueryParam("file");
  return (
    <QueryView query={query}>
      {({ entries: files, problems }) => {
        const file =
          files.find((each) => each.path === path) ?? files.find((each) => !each.path.includes("/")) ?? files[0];
        if (file === undefined) {
          return <Empty title="No files">A training has its model's files when it has finished.</Empty>;
        }
        return (
          <Grid templateColumns="minmax(200px, 260px) minmax(0, 1fr)" gap={4}>
            <Box>
              <Tree
                paths={files.map((each) => each.path)}
                sizes={new Map(files.map((each) => [each.path, each.size_bytes]))}
                chosen={file.path}
                onChoose={setPath}
              />
              {problems.map((problem) => (
                <Text key={problem} fontSize="xs" color="fg.muted" overflowWrap="anywhere">
                  {problem}
                </Text>
              ))}
            </Box>
            <Box minW={0}>
              <HStack mb={2}>
                <Text fontSize="sm" fontWeight="semibold" truncate title={file.path}>
                  {file.path}
                </Text>
                <Text fontSize="sm" color="fg.muted" whiteSpace="nowrap">
                  {formatBytes(file.size_bytes)}
                </Text>
                <Button asChild size="xs" variant="outline" marginInlineStart="auto">
                  <a href={addressOf(dagId, runId, file.path, "download")} download>
                    <LuDownload />
                    Download
                  </a>
                </Button>
              </HStack>
              <Preview dagId={dagId} runId={runId} path={file.path} size={file.size_bytes} />
            </Box>
          </Grid>
        );
      }}
    </QueryView>
  );
}

function addressOf(dagId: string, runId: string, path: string, what: "download" | "preview"): string {
  return `${apiAddress("dags", dagId, "training-runs", runId, "files", what)}?${new URLSearchParams({ path })}`;
}

function Preview({ dagId, runId, path, size }: { dagId: string; runId: string; path: string; size: number | null }) {
  const picture = PICTURE.test(path);
  const text = !picture && !BINARY.test(path);
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/training-runs/{training_id}/files/preview",
    { params: { path: { dag_id: dagId, training_id: runId }, query: { path } }, parseAs: "text" },
    { enabled: text },
  );
  if (picture) {
    return <Image src={addressOf(dagId, runId, path, "preview")} alt={path} maxW="full" borderWidth={1} />;
  }
  if (!text) {
    return <Text color="fg.muted">No preview for this type of file; download it.</Text>;
  }
  return (
    <QueryView query={query}>
      {(content) => (
        <>
          <Box
            as="pre"
            fontFamily="mono"
            fontSize="xs"
            p={3}
            bg="bg.subtle"
            borderWidth={1}
            borderRadius="md"
            overflow="auto"
            maxH="calc(100vh - 230px)"
          >
            {indented(path, String(content))}
          </Box>
          {(size ?? 0) > PREVIEW_BYTES && (
            <Text fontSize="xs" color="fg.muted">
              The first 256 KiB.
            </Text>
          )}
        </>
      )}
    </QueryView>
  );
}

function indented(path: string, content: string): string {
  if (!path.endsWith(".json")) {
    return content;
  }
  try {
    return JSON.stringify(JSON.parse(content), null, 2);
  } catch {
    return content;
  }
}

/** Files below their folders; paths come with folders first. */
function Tree({
  paths,
  sizes,
  chosen,
  onChoose,
}: {
  paths: readonly string[];
  sizes: ReadonlyMap<string, number | null>;
  chosen: string;
  onChoose: (path: string) => void;
}) {
  const lines = useMemo(() => {
    const seen = new Set<string>();
    return paths.flatMap((path) => {
      const parts = path.split("/");
      const folders = parts.slice(0, -1).map((_, depth) => parts.slice(0, depth + 1).join("/"));
      const fresh = folders.filter((folder) => !seen.has(folder));
      for (const folder of fresh) {
        seen.add(folder);
      }
      return [...fresh.map((folder) => ({ path: folder, isFolder: true })), { path, isFolder: false }];
    });
  }, [paths]);
  return (
    <Box role="tree" aria-label="Files of the run">
      {lines.map(({ path, isFolder }) => (
        <HStack
          key={`${path} ${isFolder}`}
          role="treeitem"
          aria-level={path.split("/").length}
          aria-selected={path === chosen}
          tabIndex={isFolder ? undefined : 0}
          gap={1.5}
          py={1}
          px={2}
          ps={`${8 + (path.split("/").length - 1) * 16}px`}
          fontSize="sm"
          borderRadius="sm"
          cursor={isFolder ? undefined : "pointer"}
          bg={path === chosen ? "brand.subtle" : undefined}
          _hover={isFolder ? undefined : { bg: "bg.muted" }}
          onClick={isFolder ? undefined : () => onChoose(path)}
          onKeyDown={(event) => event.key === "Enter" && !isFolder && onChoose(path)}
        >
          {isFolder ? <LuFolder aria-hidden /> : <LuFile aria-hidden />}
          <Text truncate>{path.split("/").at(-1)}</Text>
          {!isFolder && (
            <Text marginInlineStart="auto" fontSize="xs" color="fg.muted" whiteSpace="nowrap">
              {formatBytes(sizes.get(path))}
            </Text>
          )}
        </HStack>
      ))}
    </Box>
  );
}
