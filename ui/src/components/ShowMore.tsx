import { Button } from "@chakra-ui/react";
import { formatNumber } from "src/format";

/** Entries of a long list that are shown at first, and more at each click. */
export const MANY = 50;

/** A button below the first entries of a long list, for {@link MANY} more; nothing if all are shown. */
export function ShowMore({ shown, of, onMore }: { shown: number; of: number; onMore: (shown: number) => void }) {
  const rest = of - shown;
  return (
    rest > 0 && (
      <Button mt={2} size="xs" variant="outline" onClick={() => onMore(shown + MANY)}>
        Show {Math.min(rest, MANY)} more of {formatNumber(rest)}
      </Button>
    )
  );
}
