import { useState } from "react";
import { ConfirmDialog } from "src/components/ConfirmDialog";
import { Consequences, rolloutEnds } from "src/pages/Models/Consequences";
import { FieldChoice } from "src/pages/Models/FieldChoice";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** All traffic to a version. */
export function PromoteDialog({ dagId, detail, onClose }: DecisionProps) {
  const { champion, challenger, decisions, deployed } = detail;
  const choices = deployed.filter((version) => version !== champion?.version);
  const [version, setVersion] = useState(challenger?.version ?? choices[0] ?? 0);
  const { promote } = useDecision(dagId, detail.name);
  const rollback = decisions.find((each) => each.version === version && each.event === "rolled_back");
  const other = challenger && challenger.version !== version ? challenger.version : null;
  return (
    <ConfirmDialog
      title={`Promote version ${version} of ${detail.name}?`}
      confirmLabel="Promote"
      onConfirm={(reason) => promote(version, reason)}
      onClose={onClose}
    >
      <FieldChoice
        label="Version"
        value={String(version)}
        values={choices.map((each) => ({
          value: String(each),
          label: `version ${each}${each === challenger?.version ? " (challenger)" : ""}`,
        }))}
        onChange={(value) => setVersion(Number(value))}
      />
      <Consequences
        detail={detail}
        after={[{ version, percent: 100 }]}
        words={[
          `Version ${version} becomes the champion and answers all requests that name no version.`,
          champion && `Version ${champion.version} gets none, and stays loaded: a rollback can restore it.`,
          other !== null && `The canary, version ${other}, is taken out of service.`,
          rollback !== undefined &&
            `Version ${version} was rolled back before (${rollback.why}), and serves again all the same.`,
          rolloutEnds(detail),
        ]}
      />
    </ConfirmDialog>
  );
}
