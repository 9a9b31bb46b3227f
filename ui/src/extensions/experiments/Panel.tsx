import { Box, Heading, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A chart of a study below its title. */
export function Panel({ title, note, children }: { title: string; note?: ReactNode; children: ReactNode }) {
  return (
    <Box borderWidth={1} borderRadius="md" p={3} minW={0}>
      <Heading as="h3" size="sm" mb={1}>
        {title}
      </Heading>
      {note !== undefined && (
        <Text fontSize="xs" color="fg.muted" mb={1}>
          {note}
        </Text>
      )}
      {children}
    </Box>
  );
}
