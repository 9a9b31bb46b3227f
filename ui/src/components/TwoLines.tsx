import { HStack, Stack, type StackProps, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** The two lines of a cell: what matters, and what is to be known about it. */
export function TwoLines({ first, second, ...props }: StackProps & { first: ReactNode; second?: ReactNode }) {
  return (
    <Stack gap={0.5} minWidth={0} {...props}>
      <HStack gap={2} minWidth={0} minHeight="22px">
        {first}
      </HStack>
      <HStack gap={2} minWidth={0} minHeight="18px" fontSize="xs" color="fg.muted">
        {typeof second === "string" ? <Text truncate>{second}</Text> : second}
      </HStack>
    </Stack>
  );
}
