import { Box, Heading, HStack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  title: string;
  /** The way to the page that shows all of it. */
  more?: ReactNode;
  /** What is to be known of it. */
  note?: ReactNode;
  /** Whether it is a part of the page itself, not of a panel. */
  boxed?: boolean;
  children: ReactNode;
}

/** A part of a page or a panel, below its title. */
export function Part({ title, more, note, boxed = false, children }: Props) {
  return (
    <Box as="section" aria-label={title} minW={0} {...(boxed && { borderWidth: 1, borderRadius: "md", px: 4, py: 3 })}>
      <HStack mb={boxed ? 3 : 1.5} gap={3} wrap="wrap" justify="space-between" fontSize="sm">
        <Heading as={boxed ? "h2" : "h3"} size="sm" overflowWrap="anywhere">
          {title}
        </Heading>
        {more}
      </HStack>
      {note !== undefined && (
        <Text fontSize={boxed ? "xs" : "sm"} color="fg.muted" mb={1}>
          {note}
        </Text>
      )}
      {children}
    </Box>
  );
}
