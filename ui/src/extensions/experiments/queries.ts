import { keepPreviousData } from "@tanstack/react-query";
import { api, instanceOf } from "airflow-hops";
import { isSearching, type Study, type StudyRef } from "src/extensions/experiments/trials";

const POLL_MS = 3000;
const SLOW_MS = 10_000;
const LARGE = 1000;
const IDLE_MS = 30_000;

/** How often a study that goes on is looked at: a large one, which takes longer to read, less often. */
function pollMs(study: Study | undefined): number | false {
  if (study === undefined || !isSearching(study)) {
    return false;
  }
  const trials = Object.values(study.counts).reduce((sum, count) => sum + count, 0);
  return trials > LARGE ? SLOW_MS : POLL_MS;
}

/** What a study's routes are asked with. */
export const addressOf = (dagId: string, study: StudyRef) => ({
  params: {
    path: { dag_id: dagId, task_id: study.task_id, instance: instanceOf(study) },
    query: { study: study.name },
  },
});

/** The newest studies of a pipeline. */
export const useStudies = (dagId: string, limit: number) =>
  api.useQuery(
    "get",
    "/api/dags/{dag_id}/studies",
    { params: { path: { dag_id: dagId }, query: { limit } } },
    {
      placeholderData: keepPreviousData,
      refetchInterval: ({ state }) => (state.data?.entries.some(isSearching) ? POLL_MS : IDLE_MS),
    },
  );

/** One study with its trials, again and again while it goes on. */
export const useStudy = (dagId: string, study: StudyRef) =>
  api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{instance}", addressOf(dagId, study), {
    refetchInterval: ({ state }) => pollMs(state.data),
  });
