import { Box, chakra } from "@chakra-ui/react";
import { CopyButton } from "src/components/CopyButton";

/** Code or commands as they are to be written, and a button that copies them. */
export function CodeBlock({ code, label, maxHeight }: { code: string; label: string; maxHeight?: string }) {
  return (
    <Box position="relative" borderWidth={1} borderRadius="md" bg="bg.subtle" textAlign="start">
      <chakra.pre
        aria-label={label}
        px={3}
        py={2}
        pe={10}
        margin={0}
        overflow="auto"
        maxHeight={maxHeight}
        fontFamily="mono"
        fontSize="xs"
        lineHeight="1.6"
        color="fg"
        tabIndex={0}
      >
        {code}
      </chakra.pre>
      <Box position="absolute" top={1} insetEnd={maxHeight ? 4 : 1} bg="bg.subtle">
        <CopyButton text={code} label={`Copy ${label}`} />
      </Box>
    </Box>
  );
}
