import { Badge, Box, chakra, HStack, Stack, Text } from "@chakra-ui/react";
import { api, type Schemas } from "src/api/client";
import { Choice, QueryView } from "src/components";
import { plural } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import { labelOf, type Run } from "src/pages/Runs/figures";

type File = Schemas["FileDifference"];

const PALETTES = { added: "success", removed: "failed", changed: "blue" } as const;
const COLORS: Record<string, string> = { "+": "success.subtle", "-": "failed.subtle", "@": "bg.muted" };

/** How the code of a run differs from that of the first one, file by file. */
export function CodeDifferences({ dagId, runs }: { dagId: string; runs: readonly [Run, ...Run[]] }) {
  const [chosen, setChosen] = useQueryParam("with");
  const [first, ...others] = runs;
  const other = others.find((run) => run.run_id === chosen) ?? others[0] ?? first;
  const query = api.useQuery("get", "/api/dags/{dag_id}/training-runs/{training_id}/code-differences/{other_run_id}", {
    params: { path: { dag_id: dagId, training_id: first.run_id, other_run_id: other.run_id } },
  });
  return (
    <Stack gap={2} as="section" aria-label="Code">
      <HStack gap={4} wrap="wrap">
        <Text fontSize="sm" fontWeight="semibold">
          Code
        </Text>
        <Text fontSize="sm" color="fg.muted">
          from {labelOf(first)} to {others.length === 1 && labelOf(other)}
        </Text>
        {others.length > 1 && (
          <Choice
            label="Compared with the first run"
            quiet
            value={other.run_id}
            values={others.map((run) => ({ value: run.run_id, label: labelOf(run) }))}
            onChange={setChosen}
          />
        )}
      </HStack>
      <QueryView query={query}>
        {({ files, same, lacking, whole }) =>
          lacking.length > 0 ? (
            <Text fontSize="sm" color="fg.muted">
              The code of {lacking.map((id) => labelOf(id === first.run_id ? first : other)).join(" and ")} is not
              known: it was not recorded.
            </Text>
          ) : (
            <>
              <Text fontSize="sm" color="fg.muted">
                {files.length === 0
                  ? `No difference in ${plural(same, "file")}.`
                  : `${plural(files.length, "file")} differ, ${same} the same.`}
                {!whole && " Not all files are compared."}
              </Text>
              {files.map((file) => (
                <FileDiff key={file.path} file={file} />
              ))}
            </>
          )
        }
      </QueryView>
    </Stack>
  );
}

function FileDiff({ file }: { file: File }) {
  return (
    <Box borderWidth={1} borderRadius="md" overflow="hidden">
      <HStack bg="bg.subtle" px={3} py={1.5} fontSize="sm" borderBottomWidth={1}>
        <Text fontFamily="mono" overflowWrap="anywhere">
          {file.path}
        </Text>
        <Badge colorPalette={PALETTES[file.change]}>{file.change}</Badge>
      </HStack>
      {file.diff === null ? (
        <Text fontSize="sm" color="fg.muted" px={3} py={2}>
          Not shown: {file.why}.
        </Text>
      ) : (
        <chakra.pre
          aria-label={`Differences in ${file.path}`}
          margin={0}
          py={1}
          maxH="60vh"
          overflow="auto"
          fontFamily="mono"
          fontSize="xs"
          lineHeight="1.6"
          tabIndex={0}
        >
          <Box width="max-content" minW="full">
            {file.diff.split("\n").map((line, place) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: lines have no other name, and never move
              <Box key={place} px={3} bg={COLORS[line.charAt(0)]}>
                {line || " "}
              </Box>
            ))}
          </Box>
        </chakra.pre>
      )}
    </Box>
  );
}
