import { Box, Heading, HStack } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A part of the page with its title, and the way to the page that shows all of it. */
export function Section({ title, more, children }: { title: string; more?: ReactNode; children: ReactNode }) {
  return (
    <Box as="section" aria-label={title} borderWidth={1} borderRadius="md" px={4} py={3} minW={0}>
      <HStack mb={3} gap={3} wrap="wrap">
        <Heading as="h2" size="sm">
          {title}
        </Heading>
        <Box marginInlineStart="auto" fontSize="sm">
          {more}
        </Box>
      </HStack>
      {children}
    </Box>
  );
}
