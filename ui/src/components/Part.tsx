import { Box, Heading, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  title: string;
  /** What is to be known of it. */
  note?: ReactNode;
  boxed?: boolean;
  children: ReactNode;
}

/** A part of a page or a panel, below its title. */
export function Part({ title, note, boxed = false, children }: Props) {
  return (
    <Box as="section" aria-label={title} minW={0} {...(boxed && { borderWidth: 1, borderRadius: "md", p: 3 })}>
      <Heading as="h3" size="sm" mb={1.5} overflowWrap="anywhere">
        {title}
      </Heading>
      {note !== undefined && (
        <Text fontSize={boxed ? "xs" : "sm"} color="fg.muted" mb={1}>
          {note}
        </Text>
      )}
      {children}
    </Box>
  );
}
