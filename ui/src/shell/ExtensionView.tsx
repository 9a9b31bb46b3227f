import { type ComponentType, lazy, Suspense } from "react";
import type { Schemas } from "src/api/client";
import { ErrorBoundary, LoadingRows } from "src/components";
import type { ExtensionPage } from "src/hooks/useExtensions";

/** What the component of an extension gets: of these, what its place knows. */
export interface ExtensionProps {
  /** On the pages of a pipeline and of a model, and among the views of runs. */
  dagId?: string;
  /** On a tab of a model. */
  model?: string;
  /** On a task's tab: what the task has made. */
  artifact?: Schemas["ArtifactEntry"];
}

const GLOBAL = "AirflowPlugin";
const components = new Map<string, ComponentType<ExtensionProps>>();

/** The component that a bundle leaves where the host's plugins leave theirs; loaded when it is shown first. */
function componentOf(address: string): ComponentType<ExtensionProps> {
  const load = async () => {
    const ours: unknown = Reflect.get(globalThis, GLOBAL);
    try {
      await import(/* @vite-ignore */ new URL(address, document.baseURI).href);
      const component: ComponentType<ExtensionProps> = Reflect.get(globalThis, GLOBAL);
      if (component === ours) {
        throw new Error(`${address} does not define globalThis.${GLOBAL}`);
      }
      return { default: component };
    } catch (error) {
      components.delete(address);
      throw error;
    } finally {
      Reflect.set(globalThis, GLOBAL, ours);
    }
  };
  const component = components.get(address) ?? lazy(load);
  components.set(address, component);
  return component;
}

/** A page of an extension in its place. */
export function ExtensionView({ page, ...props }: { page: ExtensionPage } & ExtensionProps) {
  const Component = componentOf(page.bundle);
  return (
    <ErrorBoundary resetKey={page.name}>
      <Suspense fallback={<LoadingRows />}>
        <Component {...props} />
      </Suspense>
    </ErrorBoundary>
  );
}
