import { useState } from "react";
import { ConfirmDialog } from "src/components";
import { Compared } from "src/pages/Models/Compared";
import { Consequences, rolloutEnds } from "src/pages/Models/Consequences";
import { promotable } from "src/pages/Models/champions";
import { FieldChoice, withNone } from "src/pages/Models/FieldChoice";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** All traffic to a version. */
export function PromoteDialog({ dagId, detail, onClose }: DecisionProps) {
  const { champion, challenger, decisions } = detail;
  const choices = promotable(detail);
  const rollbackOf = (each: number) =>
    decisions.find(({ version, event }) => version === each && event === "rolled_back");
  // What was rolled back is chosen by a person alone.
  const [version, setVersion] = useState(choices.find((each) => rollbackOf(each) === undefined) ?? 0);
  const { promote } = useDecision(dagId, detail.name);
  const rollback = rollbackOf(version);
  const other = challenger && challenger.version !== version ? challenger.version : null;
  return (
    <ConfirmDialog
      title={version ? `Promote version ${version} of ${detail.name}?` : `Promote a version of ${detail.name}?`}
      confirmLabel="Promote"
      ready={version > 0}
      onConfirm={(reason) => promote(version, reason)}
      onClose={onClose}
    >
      <FieldChoice
        label="Version"
        value={version ? String(version) : ""}
        values={withNone(
          choices.map((each) => ({
            value: String(each),
            label: `version ${each}${each === challenger?.version ? " (challenger)" : rollbackOf(each) ? " (rolled back)" : ""}`,
          })),
          version > 0,
        )}
        onChange={(value) => setVersion(Number(value))}
      />
      {version > 0 && <Compared dagId={dagId} detail={detail} version={version} />}
      <Consequences
        detail={detail}
        after={version > 0 ? [{ version, percent: 100 }] : null}
        words={[
          version > 0 && `Version ${version} becomes the champion and answers all requests that name no version.`,
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
