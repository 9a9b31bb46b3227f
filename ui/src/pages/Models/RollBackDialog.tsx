import { useState } from "react";
import { ConfirmDialog, Notice, Toggle } from "src/components";
import { Compared } from "src/pages/Models/Compared";
import { Consequences, rolloutEnds } from "src/pages/Models/Consequences";
import { formerChampions } from "src/pages/Models/champions";
import { FieldChoice } from "src/pages/Models/FieldChoice";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** Takes the canary out, or puts a former champion back. */
export function RollBackDialog({ dagId, detail, onClose, isAway }: DecisionProps) {
  const { champion, challenger } = detail;
  const current = champion?.version ?? 0;
  const former = formerChampions(detail.decisions, current);
  const choices = challenger ? [current, ...former.filter((version) => version !== challenger.version)] : former;
  const [version, setVersion] = useState(choices[0] ?? 0);
  const { rollBack } = useDecision(dagId, detail.name);
  const stays = version === current;
  const [later, setLater] = useState(false);
  return (
    <ConfirmDialog
      danger
      title={`Roll ${detail.name} back to version ${version}?`}
      confirmLabel="Roll back"
      ready={later || !isAway}
      onConfirm={(reason) => rollBack(version, later, reason)}
      onClose={onClose}
    >
      <FieldChoice
        label="Back to"
        value={String(version)}
        values={choices.map((each) => ({
          value: String(each),
          label: `version ${each} (${each === current ? "the champion: takes the canary out of service" : "a former champion"})`,
        }))}
        onChange={(value) => setVersion(Number(value))}
      />
      {isAway && (
        <Notice status="warning" size="sm" title="The model server does not respond.">
          <Toggle label="Write it down: it takes effect when the server is back" checked={later} onChange={setLater} />
        </Notice>
      )}
      {!stays && <Compared dagId={dagId} detail={detail} version={version} />}
      <Consequences
        detail={detail}
        after={[{ version, percent: 100 }]}
        words={[
          stays
            ? `Version ${version} stays the champion and answers all requests that name no version.`
            : `Version ${version} becomes the champion again, and answers all requests that name no version; if it was unloaded, the server loads it first.`,
          !stays && `Version ${current}, the champion now, is marked as rolled back, and unloaded.`,
          challenger && `The canary, version ${challenger.version}, is taken out of service.`,
          rolloutEnds(detail),
        ]}
      />
    </ConfirmDialog>
  );
}
