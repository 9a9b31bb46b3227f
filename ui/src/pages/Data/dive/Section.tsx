import { Box, Heading, HStack } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A part of the panel beside the plot. */
export function Section({ title, actions, children }: { title: ReactNode; actions?: ReactNode; children: ReactNode }) {
  return (
    <Box as="section" borderBottomWidth={1} borderColor="border.muted" px={3} py={2.5}>
      <HStack justify="space-between" mb={1.5} gap={2} minH={6}>
        <Heading as="h2" fontSize="xs" lineHeight="short" fontWeight="semibold" color="fg.muted" truncate>
          {title}
        </Heading>
        {actions}
      </HStack>
      {children}
    </Box>
  );
}
