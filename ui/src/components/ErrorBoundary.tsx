import { Button } from "@chakra-ui/react";
import { Component, type ReactNode } from "react";
import { Notice } from "src/components/Notice";

/** Keeps a mistake in one part of a page from taking the rest with it. A change of `resetKey` tries again. */
export class ErrorBoundary extends Component<{ children: ReactNode; resetKey?: string }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override componentDidUpdate(before: { resetKey?: string }) {
    if (this.state.error && before.resetKey !== this.props.resetKey) {
      this.setState({ error: null });
    }
  }

  override render() {
    if (!this.state.error) {
      return this.props.children;
    }
    return (
      <Notice
        status="error"
        title="This part of the page failed"
        action={
          <Button size="xs" variant="outline" onClick={() => this.setState({ error: null })}>
            Try again
          </Button>
        }
      >
        {this.state.error.message}
      </Notice>
    );
  }
}
