import { Text } from "@chakra-ui/react";
import { ActionButton, ConfirmDialog, client } from "airflow-hops";
import { useState } from "react";
import { LuSquare } from "react-icons/lu";
import { addressOf } from "src/extensions/experiments/queries";
import { isSearching, type StudyDetail } from "src/extensions/experiments/trials";

interface Props {
  dagId: string;
  study: StudyDetail;
  trial: number | null;
  onStop: () => void;
}

/** Stops the search, or one of its trials, when it has been confirmed; says who asked already. */
export function StopButton({ dagId, study, trial, onStop }: Props) {
  const [open, setOpen] = useState(false);
  const asked = study.stop_requests.find((each) => each.trial === trial);
  if (asked) {
    return (
      <Text fontSize="sm" color="fg.muted" truncate>
        {asked.by} asked to stop it
      </Text>
    );
  }
  const why = !study.may_stop
    ? "You may not start runs of this pipeline, and so not stop its searches"
    : isSearching(study)
      ? null
      : `The task that searches is ${study.task_state}`;
  const label = trial === null ? "Stop the search" : `Stop trial ${trial}`;
  const stop = async () => {
    await client.POST("/api/dags/{dag_id}/studies/{task_id}/{instance}/stop", {
      ...addressOf(dagId, study),
      body: { trial },
    });
    onStop();
  };
  return (
    <>
      <ActionButton
        size={trial === null ? "sm" : "2xs"}
        impossible={why}
        aria-label={why === null ? label : `${label} (${why})`}
        onClick={() => setOpen(true)}
      >
        <LuSquare />
        {trial === null ? label : "Stop"}
      </ActionButton>
      {open && (
        <ConfirmDialog
          danger
          asksReason={false}
          title={`${label}?`}
          confirmLabel={label}
          onConfirm={stop}
          onClose={() => setOpen(false)}
        >
          <Text>
            {trial === null
              ? "Running trials end, and no other one begins. The task goes on with the best trial so far; it fails where none is complete."
              : "Its values are not counted, and its place is given to the next trial."}
          </Text>
          <Text color="fg.muted" fontSize="sm">
            The search looks for this every few seconds. Its record says that you asked.
          </Text>
        </ConfirmDialog>
      )}
    </>
  );
}
