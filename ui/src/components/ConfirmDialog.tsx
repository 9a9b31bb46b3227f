import { Button, Dialog, Field, Portal, Textarea } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { ErrorAlert } from "src/components/ErrorAlert";

/**
 * Asks before something is changed, and as a rule for the reason, which is recorded with the user's name.
 *
 * It closes when `onConfirm` has succeeded; an error stays in sight with what was typed.
 */
export function ConfirmDialog({
  title,
  confirmLabel,
  danger = false,
  size = "md",
  ready = true,
  asksReason = true,
  children,
  onConfirm,
  onClose,
}: {
  title: string;
  confirmLabel: string;
  danger?: boolean;
  size?: "md" | "xl";
  /** Whether what `children` ask for is there. */
  ready?: boolean;
  /** Whether a reason must be given. */
  asksReason?: boolean;
  children?: ReactNode;
  onConfirm: (reason: string) => Promise<unknown>;
  onClose: () => void;
}) {
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const confirmable = ready && (!asksReason || reason.trim() !== "");
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await onConfirm(reason.trim());
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog.Root open onOpenChange={(change) => !change.open && !busy && onClose()} size={size} role="alertdialog">
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content asChild>
            <form
              onSubmit={(event) => {
                event.preventDefault();
                if (confirmable) {
                  void confirm();
                }
              }}
            >
              <Dialog.Header>
                <Dialog.Title>{title}</Dialog.Title>
              </Dialog.Header>
              <Dialog.Body display="flex" flexDirection="column" gap={4}>
                {children}
                {asksReason && (
                  <Field.Root required>
                    <Field.Label>
                      Reason <Field.RequiredIndicator />
                    </Field.Label>
                    <Textarea
                      value={reason}
                      maxLength={1000}
                      rows={3}
                      onChange={(event) => setReason(event.target.value)}
                    />
                    <Field.HelperText>Recorded with your name.</Field.HelperText>
                  </Field.Root>
                )}
                <ErrorAlert error={error} />
              </Dialog.Body>
              <Dialog.Footer>
                <Button variant="outline" onClick={onClose} disabled={busy}>
                  Cancel
                </Button>
                <Button type="submit" colorPalette={danger ? "danger" : "brand"} loading={busy} disabled={!confirmable}>
                  {confirmLabel}
                </Button>
              </Dialog.Footer>
            </form>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
