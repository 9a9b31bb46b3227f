import { Button, type ButtonProps, VisuallyHidden } from "@chakra-ui/react";
import { Tooltip } from "src/components/Tooltip";

type Props = ButtonProps & {
  /** Why it cannot be done; null where it can. */
  impossible: string | null;
};

/** A button that says why it does nothing now: not `disabled`, which neither the keyboard nor a screen reader finds. */
export function ActionButton({ impossible, onClick, children, ...props }: Props) {
  const why = impossible;
  const button = (
    <Button
      size="sm"
      variant="outline"
      aria-disabled={why !== null}
      onClick={why === null ? onClick : undefined}
      {...props}
    >
      {children}
      {why !== null && <VisuallyHidden> ({why})</VisuallyHidden>}
    </Button>
  );
  return why === null ? button : <Tooltip content={why}>{button}</Tooltip>;
}
