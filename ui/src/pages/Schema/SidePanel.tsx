import { Box, CloseButton, Flex, Heading } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { useShownBelow } from "src/hooks/useShownBelow";

interface Props {
  label: string;
  title: string;
  onClose: () => void;
  children: ReactNode;
}

/** More of what was chosen, beside the table, and in view while the table is scrolled. */
export function SidePanel({ label, title, onClose, children }: Props) {
  const panel = useShownBelow(label, "80em");
  return (
    <Box
      ref={panel}
      as="aside"
      aria-label={label}
      borderWidth={1}
      borderRadius="md"
      p={4}
      alignSelf="start"
      position={{ xl: "sticky" }}
      top={0}
      maxHeight={{ xl: "calc(100vh - 5rem)" }}
      overflowY="auto"
      fontSize="sm"
    >
      <Flex gap={2} align="flex-start" mb={2}>
        <Heading size="md" flex={1} wordBreak="break-word">
          {title}
        </Heading>
        <CloseButton size="sm" onClick={onClose} aria-label="Close" />
      </Flex>
      {children}
    </Box>
  );
}
