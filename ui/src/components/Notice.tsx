import { Alert, type AlertRootProps } from "@chakra-ui/react";
import type { ReactNode } from "react";

type Props = {
  title?: ReactNode;
  children?: ReactNode;
  action?: ReactNode;
} & Pick<AlertRootProps, "status" | "size" | "mt" | "mb" | "my" | "alignItems">;

/** A message that stands out: its title, more of it, and what can be done. */
export function Notice({ title, children, action, ...rest }: Props) {
  return (
    <Alert.Root {...rest}>
      <Alert.Indicator />
      <Alert.Content>
        {title && <Alert.Title overflowWrap="anywhere">{title}</Alert.Title>}
        {children && (
          <Alert.Description overflowWrap="anywhere" whiteSpace="pre-line">
            {children}
          </Alert.Description>
        )}
      </Alert.Content>
      {action}
    </Alert.Root>
  );
}
