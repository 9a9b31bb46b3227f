import { HStack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A control with its name before it. */
export function Labelled({ label, children }: { label: string; children: ReactNode }) {
  return (
    <HStack gap={1.5}>
      <Text fontSize="xs" color="fg.muted" fontWeight="medium">
        {label}
      </Text>
      {children}
    </HStack>
  );
}
