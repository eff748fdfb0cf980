"""What every engine needs: to be asked, found, tried, reloaded and watched."""
