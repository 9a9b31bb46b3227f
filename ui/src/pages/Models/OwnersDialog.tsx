import { Field, Input } from "@chakra-ui/react";
import { useState } from "react";
import { ConfirmDialog } from "src/components/ConfirmDialog";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** The DAGs that may deploy the model and decide on it. */
export function OwnersDialog({ dagId, detail, onClose, onDecided }: DecisionProps) {
  const [text, setText] = useState(detail.owners.join(", "));
  const { setOwners } = useDecision(dagId, detail.name, onDecided);
  const owners = text.split(/[\s,]+/).filter(Boolean);
  return (
    <ConfirmDialog
      open
      title={`Change the owners of ${detail.name}?`}
      confirmLabel="Change owners"
      ready={owners.length > 0}
      onConfirm={(reason) => setOwners(owners, reason)}
      onClose={onClose}
    >
      <Field.Root>
        <Field.Label>DAGs, separated by commas</Field.Label>
        <Input size="sm" value={text} onChange={(event) => setText(event.currentTarget.value)} />
        <Field.HelperText>
          They alone may deploy {detail.name} and decide which version serves. You need permission to trigger each.
        </Field.HelperText>
      </Field.Root>
    </ConfirmDialog>
  );
}
