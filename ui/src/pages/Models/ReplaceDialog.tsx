import { Text } from "@chakra-ui/react";
import { useState } from "react";
import { ConfirmDialog } from "src/components";
import { ComparedCandidate } from "src/pages/Models/Compared";
import { Consequences, rolloutEnds } from "src/pages/Models/Consequences";
import { FieldChoice, withNone } from "src/pages/Models/FieldChoice";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";
import { metricsInWords } from "src/pages/Models/words";

/** All traffic to a candidate, whatever its evaluation said: for a champion that should never have been one. */
export function ReplaceDialog({ dagId, detail, onClose }: DecisionProps) {
  const { candidates, champion, challenger } = detail;
  const [fingerprint, setFingerprint] = useState(candidates.find(({ refused }) => !refused)?.fingerprint ?? "");
  const { replace } = useDecision(dagId, detail.name);
  const candidate = candidates.find((each) => each.fingerprint === fingerprint);
  return (
    <ConfirmDialog
      danger
      title={`Replace the champion of ${detail.name}?`}
      confirmLabel="Replace champion"
      ready={candidate !== undefined}
      onConfirm={(reason) => replace(fingerprint, reason)}
      onClose={onClose}
    >
      <FieldChoice
        label="Model of the run"
        value={fingerprint}
        values={withNone(
          candidates.map(({ fingerprint: value, judged, refused }) => ({
            value,
            label: `${judged.dag_id} ${judged.run_id} (${refused ? "refused" : "blessed"})`,
          })),
          candidate !== undefined,
        )}
        onChange={setFingerprint}
      />
      {candidate?.why && <Text fontSize="sm">It was refused: {metricsInWords(candidate.why)}.</Text>}
      {candidate && <ComparedCandidate detail={detail} judged={candidate.judged} />}
      <Consequences
        detail={detail}
        after={null}
        words={[
          "It becomes the champion and answers all requests that name no version, without a comparison or a canary.",
          "If it takes other inputs than the champion, clients must send those from then on; other requests are refused.",
          champion && `Version ${champion.version} gets none, and stays loaded: a rollback can restore it.`,
          challenger && `The canary, version ${challenger.version}, is taken out of service.`,
          rolloutEnds(detail),
        ]}
      />
    </ConfirmDialog>
  );
}
