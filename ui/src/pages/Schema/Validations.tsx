import { Box, Button, Code, HStack, Text } from "@chakra-ui/react";
import { useMemo, useRef } from "react";
import { LuChevronLeft, LuChevronRight } from "react-icons/lu";
import { Empty, QueryView } from "src/components";
import { useQuery } from "src/hooks/useQueryState";
import { PER_PAGE, useValidations } from "src/pages/Schema/queries";
import { Timeline } from "src/pages/Schema/Timeline";
import { Validation } from "src/pages/Schema/Validation";
import { type ArtifactRef, formatArtifact, isSameTask, parseArtifact } from "src/routes";

/** What the validations found, across runs, and one of them in full. */
export function Validations({ dagId }: { dagId: string }) {
  const [query, change] = useQuery();
  const page = Math.max(Number(query.get("older")) || 0, 0);
  const validations = useValidations(dagId, page);
  const named = useMemo(() => parseArtifact(query.get("artifact") ?? ""), [query]);
  // The newest is opened, and stays open when one comes that is newer: somebody may read it, or be about to decide.
  const stays = useRef<ArtifactRef>(undefined);
  return (
    <QueryView query={validations}>
      {({ entries: found, total_entries }) => {
        if (total_entries === 0) {
          return <NothingYet />;
        }
        const find = (one?: ArtifactRef | null) => found.find(({ address }) => one && isSameTask(address, one));
        const opened = named?.kind === "anomalies" ? find(named) : (find(stays.current) ?? found[0]);
        stays.current = opened?.address;
        return (
          <Box>
            <Timeline
              validations={found}
              opened={opened}
              onOpen={({ address }) => change({ artifact: formatArtifact(address), feature: null }, { push: true })}
            />
            {total_entries > PER_PAGE && (
              <HStack mt={2} gap={2} fontSize="sm">
                <Button
                  size="xs"
                  variant="outline"
                  disabled={(page + 1) * PER_PAGE >= total_entries}
                  onClick={() => change({ older: String(page + 1), artifact: null })}
                >
                  <LuChevronLeft /> Older
                </Button>
                <Button
                  size="xs"
                  variant="outline"
                  disabled={page === 0}
                  onClick={() => change({ older: page > 1 ? String(page - 1) : null, artifact: null })}
                >
                  Newer <LuChevronRight />
                </Button>
                <Text color="fg.muted">{total_entries} validations in total</Text>
              </HStack>
            )}
            <Box mt={5}>
              {opened ? (
                <Validation key={formatArtifact(opened.address)} dagId={dagId} validation={opened} />
              ) : (
                <Text color="fg.muted">
                  The validation in the page's address is not one of these {found.length}. Choose one above.
                </Text>
              )}
            </Box>
          </Box>
        );
      }}
    </QueryView>
  );
}

function NothingYet() {
  return (
    <Empty title="No validation has run yet">
      A <Code>ValidateExamplesOperator</Code> validates the statistics of each run against the schema; its findings are
      shown here.
    </Empty>
  );
}
