import { Badge, Box, Heading, Stack, Table, Text } from "@chakra-ui/react";
import { api } from "src/api/client";
import { QueryView } from "src/components/QueryView";
import { type ArtifactRef, pathOf } from "src/routes";

const PARTS: Record<string, string> = {
  code: "this package",
  runtime: "the libraries of the runtime environment",
  parameters: "the operator's arguments",
  "user code": "your own functions and modules",
};

/** What a part of a cache key stands for. */
const meaning = (name: string): string =>
  PARTS[name] ?? (name.startsWith("input ") ? "contents and properties of the input" : "a part that the operator adds");

/** What has to be the same for the task to come to this artifact again, beside what holds now. */
export function Reproduce({ address }: { address: ArtifactRef }) {
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/reproduction",
    { params: { path: pathOf(address) } },
    { staleTime: 30_000 },
  );
  return (
    <Stack gap={1}>
      <Heading as="h3" size="sm">
        Reproduce
      </Heading>
      <QueryView query={query}>
        {({ parts, newest, cache_key: key, newest_run: run }) => {
          if (key === null) {
            return <Text color="fg.muted">Its task always runs: it depends on more than its inputs.</Text>;
          }
          const names = Object.keys({ ...parts, ...newest }).toSorted();
          const changed = names.filter((name) => name in newest && newest[name] !== parts[name]);
          return (
            <>
              <Text color="fg.muted">
                {changed.length === 0
                  ? "Nothing has changed up to the task's newest artifact: another run would reuse it from the cache."
                  : `Changed since, in run ${run}: ${changed.join(", ")}.`}
              </Text>
              <Table.Root size="sm" aria-label="Parts of the cache key">
                <Table.Body>
                  {names.map((name) => (
                    <Table.Row key={name}>
                      <Table.Cell px={0} py={1}>
                        <Text>{name}</Text>
                        <Text fontSize="xs" color="fg.muted">
                          {meaning(name)}
                        </Text>
                      </Table.Cell>
                      <Table.Cell px={0} py={1} textAlign="end">
                        <Box fontFamily="mono" fontSize="xs" title={parts[name]}>
                          {parts[name]?.slice(0, 12) ?? "none"}
                        </Box>
                        {changed.includes(name) && (
                          <Badge size="xs" colorPalette="warning" title={newest[name]}>
                            now {newest[name]?.slice(0, 8)}
                          </Badge>
                        )}
                      </Table.Cell>
                    </Table.Row>
                  ))}
                </Table.Body>
              </Table.Root>
            </>
          );
        }}
      </QueryView>
    </Stack>
  );
}
