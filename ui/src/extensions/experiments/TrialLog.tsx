import { Box, Drawer, Stack, Text } from "@chakra-ui/react";
import { api, QueryView, SideDrawer } from "airflow-hops";
import { addressOf } from "src/extensions/experiments/queries";
import type { StudyDetail } from "src/extensions/experiments/trials";

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
  const found = api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{instance}/log", {
    params: { path, query: { ...query, trial } },
  });
  return (
    <SideDrawer onClose={onClose} header={<Drawer.Title>Trial {trial}</Drawer.Title>}>
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
    </SideDrawer>
  );
}
