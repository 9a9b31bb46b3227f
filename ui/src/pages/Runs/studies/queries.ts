import { api } from "src/api/client";
import { isSearching, type Study } from "src/pages/Runs/studies/trials";

/** How often a study that goes on is looked at. */
export const POLL_MS = 3000;

/** What a study's routes are asked with. */
export const addressOf = (
  dagId: string,
  { task_id, map_index, name }: Pick<Study, "task_id" | "map_index" | "name">,
) => ({
  params: { path: { dag_id: dagId, task_id, map_index }, query: { study: name } },
});

/** The studies of a pipeline. */
export const useStudies = (dagId: string) =>
  api.useQuery(
    "get",
    "/api/dags/{dag_id}/studies",
    { params: { path: { dag_id: dagId }, query: { limit: 500 } } },
    { refetchInterval: ({ state }) => (state.data?.studies.some(isSearching) ? POLL_MS : false) },
  );

/** One study with its trials, again and again while it goes on. */
export const useStudy = (dagId: string, study: Pick<Study, "task_id" | "map_index" | "name">) =>
  api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{map_index}", addressOf(dagId, study), {
    refetchInterval: ({ state }) => (state.data && isSearching(state.data) ? POLL_MS : false),
  });
