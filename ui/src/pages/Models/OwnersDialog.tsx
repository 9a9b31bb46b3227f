import { OwnersDialog as Dialog } from "src/components/Owners";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** The DAGs that may deploy the model and decide on it. */
export function OwnersDialog({ dagId, detail, onClose }: DecisionProps) {
  const { setOwners } = useDecision(dagId, detail.name);
  return (
    <Dialog
      name={detail.name}
      owners={detail.owners}
      right={`deploy ${detail.name} and decide which version serves`}
      onChange={setOwners}
      onClose={onClose}
    />
  );
}
