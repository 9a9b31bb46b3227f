import { Skeleton, Stack } from "@chakra-ui/react";

/** Lines that stand for a table or a text until it is there. */
export function LoadingRows({ rows = 8 }: { rows?: number }) {
  return (
    <Stack gap={2} role="status" aria-busy="true" aria-label="Loading">
      {Array.from({ length: rows }, (_, row) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: these are all alike
        <Skeleton key={row} height={7} />
      ))}
    </Stack>
  );
}

/** A box that stands for a chart or a card until it is there. */
export function LoadingBox({ height = "240px" }: { height?: string }) {
  return (
    <Skeleton height={height} width="full" borderRadius="md" role="status" aria-busy="true" aria-label="Loading" />
  );
}
