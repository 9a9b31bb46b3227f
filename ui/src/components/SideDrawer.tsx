import { CloseButton, Drawer, Portal } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  header: ReactNode;
  onClose: () => void;
  children: ReactNode;
}

/** Details of one of several, over the page: closed by its button, Escape, or a click beside it. */
export function SideDrawer({ header, onClose, children }: Props) {
  return (
    <Drawer.Root open size="xl" onOpenChange={({ open }) => !open && onClose()}>
      <Portal>
        <Drawer.Backdrop />
        <Drawer.Positioner>
          <Drawer.Content maxW="min(920px, 92vw)">
            <Drawer.Header borderBottomWidth={1} py={3} pe={14}>
              {header}
            </Drawer.Header>
            <Drawer.Body py={3}>{children}</Drawer.Body>
            <Drawer.CloseTrigger asChild>
              <CloseButton size="sm" />
            </Drawer.CloseTrigger>
          </Drawer.Content>
        </Drawer.Positioner>
      </Portal>
    </Drawer.Root>
  );
}
