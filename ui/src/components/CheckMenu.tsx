import { Menu, Portal } from "@chakra-ui/react";
import type { ReactElement, ReactNode } from "react";

interface Item {
  value: string;
  label?: ReactNode;
  count?: ReactNode;
  checked: boolean;
  disabled?: boolean;
}

interface Props {
  /** The button that opens it. */
  trigger: ReactElement;
  items: readonly Item[];
  onCheck: (value: string, checked: boolean) => void;
  /** Below the items. */
  children?: ReactNode;
}

/** A menu of which any number of items may be taken; it stays open. */
export function CheckMenu({ trigger, items, onCheck, children }: Props) {
  return (
    <Menu.Root closeOnSelect={false}>
      <Menu.Trigger asChild>{trigger}</Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="80" overflowY="auto">
            {items.map(({ value, label, count, ...state }) => (
              <Menu.CheckboxItem
                key={value}
                value={value}
                onCheckedChange={(checked) => onCheck(value, checked)}
                {...state}
              >
                <Menu.ItemIndicator />
                {label ?? value}
                {count !== undefined && <Menu.ItemCommand>{count}</Menu.ItemCommand>}
              </Menu.CheckboxItem>
            ))}
            {children}
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
}
