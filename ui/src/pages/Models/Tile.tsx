import { Box, HStack, Text } from "@chakra-ui/react";
import { ERROR } from "src/components/colors";
import { Tooltip } from "src/components/Tooltip";

const BAR_PX = 22;

/** A figure with its name and unit; more words on hover; a few bars beside it. */
export function Tile({
  label,
  value,
  unit,
  help,
  bad = false,
  bars = [],
}: {
  label: string;
  value: string;
  unit?: string;
  help: string;
  bad?: boolean;
  bars?: readonly { label: string; value: number }[];
}) {
  const most = Math.max(1, ...bars.map((bar) => bar.value));
  return (
    <Tooltip content={<Text whiteSpace="pre-line">{help}</Text>}>
      <Box bg="bg.subtle" borderRadius="md" px={3} py={1.5} tabIndex={0} role="group" aria-label={`${label}: ${value}`}>
        <Text fontSize="xs" color="fg.muted">
          {label}
        </Text>
        <HStack align="flex-end" gap={2}>
          <Text fontSize="lg" fontWeight="semibold" fontVariantNumeric="tabular-nums" color={bad ? ERROR : "fg"}>
            {value}
            {unit && value !== "–" && (
              <Text as="span" fontSize="sm" fontWeight="normal" color="fg.muted">
                {" "}
                {unit}
              </Text>
            )}
          </Text>
          {bars.length > 0 && (
            <HStack align="flex-end" gap="1px" height={`${BAR_PX}px`} marginInlineStart="auto" mb={1} aria-hidden>
              {bars.map((bar) => (
                <Box
                  key={bar.label}
                  width="6px"
                  height={`${Math.max(1, (BAR_PX * bar.value) / most)}px`}
                  bg="blue.solid"
                  borderTopRadius="1px"
                />
              ))}
            </HStack>
          )}
        </HStack>
      </Box>
    </Tooltip>
  );
}
