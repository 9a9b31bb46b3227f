import { Box, SimpleGrid, Skeleton, Stack } from "@chakra-ui/react";

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

/** Outlines of a page's sections until they are there; the first is as wide as the page. */
export function LoadingSections({ titles, columns = 1 }: { titles: readonly string[]; columns?: number }) {
  return (
    <SimpleGrid columns={{ base: 1, xl: columns }} gap={4} role="status" aria-busy="true" aria-label="Loading">
      {titles.map((title, place) => (
        <Box key={title} borderWidth={1} borderRadius="md" px={4} py={3} gridColumn={place ? undefined : "1 / -1"}>
          {title}
          <Skeleton mt={3} height="100px" />
        </Box>
      ))}
    </SimpleGrid>
  );
}

/** A box that stands for a chart or a card until it is there. */
export function LoadingBox({ height = "240px" }: { height?: string }) {
  return (
    <Skeleton height={height} width="full" borderRadius="md" role="status" aria-busy="true" aria-label="Loading" />
  );
}
