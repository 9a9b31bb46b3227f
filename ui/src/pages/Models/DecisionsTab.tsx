import { useState } from "react";
import { Empty } from "src/components/Empty";
import { MANY, ShowMore } from "src/components/ShowMore";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOfModel } from "src/pages/Models/history";
import type { ModelDetail } from "src/pages/Models/queries";

/** Every decision on the model, the newest first: who, when, why; rollouts step by step; candidates that were refused. */
export function DecisionsTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const entries = historyOfModel(detail);
  const [shown, setShown] = useState(MANY);
  return entries.length === 0 ? (
    <Empty title="No decisions yet">The first decision is made when a run of the pipeline deploys a version.</Empty>
  ) : (
    <>
      <HistoryList dagId={dagId} entries={entries.slice(0, shown)} />
      <ShowMore shown={shown} of={entries.length} onMore={setShown} />
    </>
  );
}
