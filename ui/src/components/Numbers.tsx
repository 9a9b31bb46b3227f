import { Box, type BoxProps, HStack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  of: readonly (readonly [string, ReactNode])[];
  fontSize?: BoxProps["fontSize"];
}

/** Figures side by side, each below its name. */
export function Numbers({ of, fontSize = "lg" }: Props) {
  return (
    <HStack gap={fontSize === "lg" ? 8 : 6} wrap="wrap" align="flex-start">
      {of.map(([name, value]) => (
        <Box key={name}>
          <Text fontSize="xs" color="fg.muted" _firstLetter={{ textTransform: "uppercase" }}>
            {name}
          </Text>
          <Box fontSize={fontSize} fontWeight="semibold" fontVariantNumeric="tabular-nums">
            {value}
          </Box>
        </Box>
      ))}
    </HStack>
  );
}
