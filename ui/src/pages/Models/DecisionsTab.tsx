import { useState } from "react";
import { Empty } from "src/components/Empty";
import { MANY, ShowMore } from "src/components/ShowMore";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOf } from "src/pages/Models/history";
import type { ModelDetail } from "src/pages/Models/queries";

/** Every decision on the model, the newest first: who, when, why; rollouts step by step; candidates that were refused. */
export function DecisionsTab({ detail }: { detail: ModelDetail }) {
  const entries = historyOf(detail.decisions, detail.refused);
  const [shown, setShown] = useState(MANY);
  return entries.length === 0 ? (
    <Empty title="No decisions yet">The first decision is made when a run of the pipeline deploys a version.</Empty>
  ) : (
    <>
      <HistoryList entries={entries.slice(0, shown)} />
      <ShowMore shown={shown} of={entries.length} onMore={setShown} />
    </>
  );
}
