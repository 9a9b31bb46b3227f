import { Button, Field, HStack, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { queryClient, type Schemas } from "src/api/client";
import { ConfirmDialog } from "src/components/ConfirmDialog";

type Change = {
  /** What the owners own, as a person calls it. */
  name: string;
  /** What they alone may do, as in "They alone may …". */
  right: string;
  /** Stores the new owners. */
  onChange: (owners: string[], reason: string) => Promise<unknown>;
};

/** The DAGs that own a name, and a button to name others for whoever may. */
export function Owners({
  owned,
  mayChange,
  onChange,
  ...what
}: Change & { owned: Schemas["OwnedName"]; mayChange: boolean }) {
  const [open, setOpen] = useState(false);
  return (
    <HStack gap={3} wrap="wrap">
      <OwnedBy owners={owned.owners} />
      {mayChange && (
        <Button size="xs" variant="outline" onClick={() => setOpen(true)}>
          Change owners
        </Button>
      )}
      {open && (
        <OwnersDialog
          {...what}
          owners={owned.owners}
          onChange={async (owners, reason) => {
            await onChange(owners, reason);
            await queryClient.invalidateQueries();
          }}
          onClose={() => setOpen(false)}
        />
      )}
    </HStack>
  );
}

/** The owners in a line; nothing if there are none to be seen. */
export function OwnedBy({ owners }: { owners: string[] }) {
  return (
    owners.length > 0 && (
      <Text fontSize="sm" color="fg.muted">
        owned by {owners.join(", ")}
      </Text>
    )
  );
}

/** Asks for other owners. */
export function OwnersDialog({
  name,
  right,
  onChange,
  owners: before,
  onClose,
}: Change & { owners: string[]; onClose: () => void }) {
  const [text, setText] = useState(before.join(", "));
  const owners = text.split(/[\s,]+/).filter(Boolean);
  return (
    <ConfirmDialog
      title={`Change the owners of ${name}?`}
      confirmLabel="Change owners"
      ready={owners.length > 0}
      onConfirm={(reason) => onChange(owners, reason)}
      onClose={onClose}
    >
      <Field.Root>
        <Field.Label>DAGs, separated by commas</Field.Label>
        <Input size="sm" value={text} onChange={(event) => setText(event.currentTarget.value)} />
        <Field.HelperText>They alone may {right}. You need permission to trigger each.</Field.HelperText>
      </Field.Root>
    </ConfirmDialog>
  );
}
