import { IconButton, Menu, Portal } from "@chakra-ui/react";
import { LuColumns3 } from "react-icons/lu";
import type { Column } from "src/components/table";

/** Which columns a table shows; `onChange` gets none when they are those that it shows by itself. */
export function ColumnChoice<Row>({
  columns,
  shown,
  onChange,
}: {
  columns: readonly Column<Row>[];
  shown: readonly Column<Row>[];
  onChange: (keys: string[]) => void;
}) {
  const isShown = (column: Column<Row>) => shown.includes(column);
  const set = (column: Column<Row>, checked: boolean) => {
    const next = columns.filter((each) => (each === column ? checked : isShown(each)));
    const usual = columns.every((each) => next.includes(each) === (each.fixed || !each.optional));
    onChange(usual ? [] : next.map(({ key }) => key));
  };
  return (
    <Menu.Root closeOnSelect={false}>
      <Menu.Trigger asChild>
        <IconButton size="sm" variant="outline" colorPalette="gray" aria-label="Choose columns" title="Choose columns">
          <LuColumns3 />
        </IconButton>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="80" overflowY="auto">
            {columns.map((column) => (
              <Menu.CheckboxItem
                key={column.key}
                value={column.key}
                checked={isShown(column)}
                disabled={column.fixed}
                onCheckedChange={(checked) => set(column, checked)}
              >
                <Menu.ItemIndicator />
                {column.label}
              </Menu.CheckboxItem>
            ))}
            <Menu.Separator />
            <Menu.Item value="reset" onSelect={() => onChange([])}>
              Reset
            </Menu.Item>
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
}
