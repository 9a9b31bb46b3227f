import { Box, CloseButton, Drawer, Portal, Stack, Text } from "@chakra-ui/react";
import { api } from "src/api/client";
import { QueryView } from "src/components/QueryView";
import { addressOf } from "src/pages/Runs/studies/queries";
import type { StudyDetail } from "src/pages/Runs/studies/trials";

/** Why a trial failed, and the last lines of its log, over the page. */
export function TrialLog({
  dagId,
  study,
  trial,
  onClose,
}: {
  dagId: string;
  study: StudyDetail;
  trial: number;
  onClose: () => void;
}) {
  const { path, query } = addressOf(dagId, study).params;
  const found = api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{map_index}/log", {
    params: { path, query: { ...query, trial } },
  });
  return (
    <Drawer.Root open size="xl" onOpenChange={({ open }) => !open && onClose()}>
      <Portal>
        <Drawer.Backdrop />
        <Drawer.Positioner>
          <Drawer.Content maxW="min(920px, 92vw)">
            <Drawer.Header borderBottomWidth={1} py={3} pe={14}>
              <Drawer.Title>Trial {trial}</Drawer.Title>
            </Drawer.Header>
            <Drawer.Body py={3}>
              <QueryView query={found}>
                {({ reason, text }) => (
                  <Stack gap={3}>
                    <Text overflowWrap="anywhere">{reason}</Text>
                    {text ? (
                      <Box
                        as="pre"
                        role="region"
                        aria-label={`The last lines of trial ${trial}`}
                        tabIndex={0}
                        p={3}
                        bg="bg.muted"
                        fontSize="xs"
                        overflow="auto"
                        whiteSpace="pre-wrap"
                        overflowWrap="anywhere"
                      >
                        {text}
                      </Box>
                    ) : (
                      <Text color="fg.muted">Nothing of its log was kept.</Text>
                    )}
                  </Stack>
                )}
              </QueryView>
            </Drawer.Body>
            <Drawer.CloseTrigger asChild>
              <CloseButton size="sm" />
            </Drawer.CloseTrigger>
          </Drawer.Content>
        </Drawer.Positioner>
      </Portal>
    </Drawer.Root>
  );
}
