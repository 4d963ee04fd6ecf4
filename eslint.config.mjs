import js from '@eslint/js';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  {
    ignores: [
      '**/node_modules/',
      'labextension/lib/',
      'kfnb/labextension/',
      'kfnb/views/static/',
      '.venv/',
      'build/',
      'dist/',
      'out/'
    ]
  },
  {
    files: ['**/*.mjs', 'labextension/style/*.js'],
    languageOptions: { globals: { console: 'readonly' } },
    extends: [js.configs.recommended]
  },
  {
    files: ['labextension/{src,test}/**/*.{ts,tsx}'],
    extends: [
      js.configs.recommended,
      ...tseslint.configs.strictTypeChecked,
      ...tseslint.configs.stylisticTypeChecked
    ],
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname }
    },
    rules: {
      eqeqeq: 'error',
      'no-console': 'error',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/explicit-module-boundary-types': 'error'
    }
  }
);
