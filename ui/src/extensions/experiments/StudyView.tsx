import { Button, Code, Grid, Stack, Text } from "@chakra-ui/react";
import { CopyButton, QueryView, useQuery } from "airflow-hops";
import { useMemo } from "react";
import { LuArrowLeft } from "react-icons/lu";
import { BestSoFar } from "src/extensions/experiments/BestSoFar";
import { useStudy } from "src/extensions/experiments/queries";
import { StudyHeader } from "src/extensions/experiments/StudyHeader";
import { TrialTable } from "src/extensions/experiments/TrialTable";
import { type StudyDetail, type StudyRef, trialsOf } from "src/extensions/experiments/trials";

/** One study: its progress, and all of its trials in a table. Further charts are those of Optuna's dashboard. */
export function StudyView({ dagId, study }: { dagId: string; study: StudyRef }) {
  const query = useStudy(dagId, study);
  const [, change] = useQuery();
  return (
    <Stack gap={4}>
      <Button
        size="xs"
        variant="ghost"
        alignSelf="flex-start"
        onClick={() => change({ study: null, state: null, trial: null }, { push: true })}
      >
        <LuArrowLeft />
        All studies
      </Button>
      <QueryView query={query}>{(found) => <Trials dagId={dagId} study={found} onStop={query.refetch} />}</QueryView>
    </Stack>
  );
}

function Trials({ dagId, study, onStop }: { dagId: string; study: StudyDetail; onStop: () => void }) {
  const trials = useMemo(() => trialsOf(study), [study]);
  const metric = Math.max(study.metrics.indexOf(study.choose ?? ""), 0);
  return (
    <>
      <StudyHeader dagId={dagId} study={study} onStop={onStop} />
      <Grid templateColumns="repeat(auto-fit, minmax(min(340px, 100%), 1fr))">
        <BestSoFar
          trials={trials}
          metric={metric}
          name={study.metrics[metric] ?? ""}
          direction={study.directions[metric]}
        />
      </Grid>
      {study.journal !== null && <InOptuna journal={study.journal} />}
      <TrialTable dagId={dagId} study={study} trials={trials} onStop={onStop} />
    </>
  );
}

/** How Optuna's dashboard opens the study. */
function InOptuna({ journal }: { journal: string }) {
  const path = journal.startsWith("file://") ? decodeURIComponent(journal.slice(7)) : null;
  const command = `optuna-dashboard '${path ?? "journal.log"}'`;
  return (
    <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
      Importance of parameters, intermediate values, Pareto front and more, in Optuna's dashboard
      {path === null && ` (download ${journal} first)`}:{" "}
      <Code display="inline" overflowWrap="anywhere">
        {command}
      </Code>{" "}
      <CopyButton text={command} />
    </Text>
  );
}
